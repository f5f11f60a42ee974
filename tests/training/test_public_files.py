"""Invariant 9: what may be handed on holds nothing that only the operator may know."""

import json
import re
import stat

import pytest

from tests.plans import els_plan, uls_plan
from tests.speed import fast_then_slow
from tests.training.toy import CONFIG, lines
from userdp.training import loop
from userdp.training.evaluation import evaluate_splits
from userdp.training.loop import train

SHAREABLE = ("ledger.jsonl", "plan.json", "train.toml", "model")
OPERATORS = ("operator.jsonl", "resume.json", ".lock", "checkpoints", "curves")
OPERATOR_WORDS = re.compile(
    r'"(units|rows|loss|losses|norms?|norm_quantiles|seconds|time\w*|clipped\w*|counts?|users)"\s*:'
)


def secrets_of(run, store):
    """Exact numbers about people, of so many digits that they are nowhere by chance; and ids."""
    operator = json.dumps(lines(run / "operator.jsonl"))
    numbers = set(re.findall(r"-?\d+\.\d{5,}(?:e-?\d+)?", operator))
    ids = {user.decode() for user in store.user_ids()}
    return (numbers | ids | {store.meta.content_sha256, str(store.path)}) - {"0.01"}


def leaks(run, store):
    """The checker: every secret that stands in a shareable file, and every open mode."""
    found, secrets = [], secrets_of(run, store)
    for name in SHAREABLE:
        path = run / name
        for file in [path] if path.is_file() else sorted(path.rglob("*")):
            if file.suffix != ".safetensors":
                text = file.read_text()
                words = [one for one in secrets if one in text] + OPERATOR_WORDS.findall(text)
                found += [f"{file.name}: {one}" for one in words]
    closed = [run / name for name in OPERATORS if (run / name).exists()]
    closed += [path for path in (run / "checkpoints").rglob("*") if path.is_file()]
    found += [f"{one.name}: mode" for one in closed if stat.S_IMODE(one.stat().st_mode) & 0o77]
    known = {*SHAREABLE, *OPERATORS}
    return found + [f"{p.name}: of no known kind" for p in run.iterdir() if p.name not in known]


@pytest.fixture
def finished(store, tmp_path):
    def finished(plan=None):
        train(store, plan or uls_plan(), CONFIG, out=tmp_path / "run")
        evaluate_splits(tmp_path / "run", store, ["held-out-users"], with_base=False)
        return tmp_path / "run"

    return finished


@pytest.mark.parametrize("plan", fast_then_slow([uls_plan(), els_plan()]), ids=["ULS", "ELS"])
@pytest.mark.pitfall(number=27)
def test_invariant_9_shareable_files_hold_nothing_of_the_operators(store, finished, plan):
    run = finished(plan)
    assert len(secrets_of(run, store)) > 40
    assert leaks(run, store) == []
    if plan == uls_plan():  # the twin, an operator's file that all may read
        (run / "operator.jsonl").chmod(0o644)
        assert leaks(run, store) == ["operator.jsonl: mode"]


def test_invariant_9_twin_a_loss_in_a_public_file_is_caught(store, finished, monkeypatch):
    honest = loop.OperatorLog.step

    def chatty(self, step, *, rate):
        honest(self, step, rate=rate)
        with self._folder.train.open("a") as file:  # the loss is None for an empty cohort
            file.write(f"# {json.dumps(step.operator['loss'])}\n")

    monkeypatch.setattr(loop.OperatorLog, "step", chatty)
    assert any("train.toml" in leak for leak in leaks(finished(), store))


FACTS = {"base_model", "selection", "seq_len", "store_facts", "userdp", "store"}
"""What the first line of a run's ledger may tell: each a constant, or a word of the set-up."""


def test_invariant_9_a_run_notes_no_fact_that_is_not_on_the_list(begin, tmp_path):
    """A small whole number, such as a count of people, is told from a constant by its name only."""
    begin().close()
    assert set(lines(tmp_path / "run" / "ledger.jsonl")[0]["facts"]) <= FACTS
