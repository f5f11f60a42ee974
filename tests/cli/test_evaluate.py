"""`userdp evaluate` from outside: by split, next to the base model, exact or under DP."""

from __future__ import annotations

import json
import stat

import pytest

import userdp as library
from tests.training.toy import lines
from userdp.claims import claim
from userdp.cli.output import in_words
from userdp.data.splits import Split
from userdp.data.user_store import UserStore
from userdp.ledger import RunFolder
from userdp.training.released_model import released_models
from userdp.training.store_losses import user_losses


class Heard:
    """All that an operation tells of its progress."""

    def __init__(self):
        self.calls = []

    def stage(self, name, total, **words):
        self.calls.append((name, total))

    def at(self, done):
        self.calls.append(done)


@pytest.fixture
def evaluate(place, userdp):
    """What ``userdp evaluate`` prints."""

    def printed(*options: object) -> str:
        status, out, _ = userdp("evaluate", place / "run", "--store", place / "store", *options)
        assert status == 0
        return out

    return printed


def test_both_held_out_splits_before_and_after_for_the_operator(place, evaluate):
    result = json.loads(evaluate("--json"))
    assert result["operator_only"] is True
    assert [found["split"] for found in result["splits"]] == ["held-out-users", "held-out-examples"]
    for found in result["splits"]:
        assert found["model"]["loss"] != found["base"]["loss"]
        for of in ("model", "base"):
            assert str(found[of]["loss"]) in (place / "run" / "operator.jsonl").read_text()
            quantiles = found[of]["user_quantiles"]
            assert quantiles["p5"] <= quantiles["p50"] <= quantiles["p95"]
    told = evaluate()
    assert "Operator-only" in told
    assert "After less before" in told


def test_the_paired_difference_is_that_of_each_user_s_losses(place, evaluate):
    """The oracle: every user's loss under both models, computed one user at a time."""
    (told,) = json.loads(evaluate("--split", "held-out-users", "--json"))["splits"]
    store = UserStore.open(place / "store")
    models = released_models(RunFolder(place / "run"), store, with_base=True)
    after, before = (
        user_losses(models[of], store, Split.HELD_OUT_USERS) for of in ("model", "base")
    )
    each = after - before
    assert told["difference"]["user_loss"] == pytest.approx(each.mean(), rel=1e-4)
    error = each.std(ddof=1) / len(each) ** 0.5
    assert told["difference"]["standard_error"] == pytest.approx(error, rel=1e-3)
    assert told["difference"]["better_for"] == (each < 0).mean()
    assert "paired difference" in (place / "run" / "operator.jsonl").read_text()


@pytest.mark.parametrize(
    ("difference", "error", "words"),
    [(-0.18, 0.05, "better"), (0.18, 0.05, "worse"), (-0.18, 0.1, "not told apart")],
)
def test_which_is_better_is_said_only_where_the_errors_let_one_see_it(difference, error, words):
    told = {"user_loss": difference, "standard_error": error}
    part = {"split": "train", "users": 2, "model": {"loss": 1.0}, "difference": told}
    said = in_words({"run": "run", "operator_only": True, "splits": [part]}, "evaluate")
    assert any(words in one for one in said)


def test_one_split_without_the_base_model(evaluate):
    options = ("--split", "train", "--no-base", "--most-users", 5, "--json")
    (found,) = json.loads(evaluate(*options))["splits"]
    assert (found["split"], found["users"]) == ("train", 5)
    assert "base" not in found


def test_progress_of_a_release_tells_nobodys_number(place):
    """The twin is the exact evaluation, whose progress counts: for its operator."""
    pytest.importorskip("opendp", reason="the extra queries is not installed")
    released, exact = Heard(), Heard()
    run, store = place / "run", place / "store"
    library.evaluate(run, store=store, epsilon=0.5, base=False, progress=released)
    assert released.calls == [("evaluate", None)]
    library.evaluate(run, store=store, base=False, progress=exact)
    assert any(isinstance(call, int) for call in exact.calls)


def test_a_release_is_charged_noted_and_shareable(place, evaluate):
    pytest.importorskip("opendp", reason="the extra queries is not installed")
    before = claim(place / "store").guarantee.epsilon
    noted = (place / "run" / "operator.jsonl").read_bytes()
    result = json.loads(evaluate("--epsilon", 0.5, "--json"))
    assert result["operator_only"] is False
    assert 0 <= result["model"]["user_loss"] <= result["loss_bound"]
    assert abs(result["difference"]["user_loss"]) <= result["difference"]["bound"] == 1
    assert 0 < result["difference"]["noise_error"] <= result["difference"]["standard_error"]
    assert "base" not in result
    assert claim(place / "store").guarantee.epsilon == pytest.approx(before + 0.5)
    assert "charged" in evaluate("--epsilon", 0.25, "--split", "held-out-examples", "--no-base")
    path = place / "run" / "ledger.jsonl"
    released = [line for line in lines(path) if line["kind"] == "loss"]
    assert [line["epsilon"] for line in released] == [0.5, 0.25]
    assert released[0]["told"]["model"] == result["model"]
    assert stat.S_IMODE(path.stat().st_mode) & 0o044
    assert (place / "run" / "operator.jsonl").read_bytes() == noted
    exact = json.dumps(result)
    assert "quantiles" not in exact
    assert str(len(UserStore.open(place / "store").split("train").counts)) not in exact.split()
