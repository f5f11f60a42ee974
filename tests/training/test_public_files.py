"""Invariant 9: what may be handed on holds nothing that only the operator may know."""

import json
import re
import stat
from pathlib import Path

import pytest

from tests.plans import els_plan, uls_plan
from tests.speed import fast_then_slow
from tests.training.toy import CONFIG, lines, sgd, toy_model
from userdp.data.store import UserStore
from userdp.training import operator_log
from userdp.training.config import TrainConfig
from userdp.training.evaluation import evaluate_splits
from userdp.training.loop import train
from userdp.training.private import make_private

SHAREABLE = ("ledger.jsonl", "plan.json", "train.toml", "model")
OPERATOR_FILES = ("operator.jsonl", "resume.json", ".lock")
OPERATOR_FOLDERS = ("checkpoints", "curves")
OPERATOR_WORDS = re.compile(
    r'"(units|rows|loss|losses|norms?|norm_quantiles|seconds|time\w*|clipped\w*|counts?|users)"\s*:'
)


def numbers(value) -> set[str]:
    """Every number in a JSON value with so many digits that it is nowhere by chance, as text."""
    found = re.findall(r"-?\d+\.\d{5,}(?:e-?\d+)?", json.dumps(value))
    return set(found)


def secrets_of(run: Path, store: UserStore) -> set[str]:
    """Exact numbers about people, and texts that identify the data."""
    meta = store.meta
    ids = {user.decode() for user in store.user_ids()}
    known = {"0.01"}
    operator = set().union(*(numbers(line) for line in lines(run / "operator.jsonl")))
    return (operator | ids | {meta.content_sha256, str(store.path)}) - known


def leaks(run: Path, store: UserStore) -> list[str]:
    """The checker: every secret that stands in a shareable file, and every open mode."""
    found = []
    for name in SHAREABLE:
        path = run / name
        for file in [path] if path.is_file() else sorted(path.rglob("*")):
            if file.suffix == ".safetensors":
                continue
            text = file.read_text()
            found += [
                f"{file.name}: {secret}" for secret in secrets_of(run, store) if secret in text
            ]
            found += [f"{file.name}: {word}" for word in OPERATOR_WORDS.findall(text)]
    for name in OPERATOR_FILES:
        if stat.S_IMODE((run / name).stat().st_mode) != 0o600:
            found.append(f"{name}: mode")
    for name in OPERATOR_FOLDERS:
        if (run / name).exists() and stat.S_IMODE((run / name).stat().st_mode) != 0o700:
            found.append(f"{name}: mode")
    inner = [p for p in (run / "checkpoints").rglob("*") if p.is_file()]
    found += [f"{p.name}: mode" for p in inner if stat.S_IMODE(p.stat().st_mode) != 0o600]
    known = {*SHAREABLE, *OPERATOR_FILES, *OPERATOR_FOLDERS}
    found += [f"{p.name}: of no known kind" for p in run.iterdir() if p.name not in known]
    return found


def finished(store, tmp_path, plan, config: TrainConfig = CONFIG) -> Path:
    train(store, plan, config, out=tmp_path / "run")
    evaluate_splits(tmp_path / "run", store, ["held-out-users"], with_base=False)
    return tmp_path / "run"


@pytest.mark.parametrize("plan", fast_then_slow([uls_plan(), els_plan()]), ids=["ULS", "ELS"])
@pytest.mark.pitfall(number=27)
def test_invariant_9_shareable_files_hold_nothing_of_the_operators(store, tmp_path, plan):
    run = finished(store, tmp_path, plan)
    assert len(secrets_of(run, store)) > 40
    assert leaks(run, store) == []


def test_invariant_9_twin_a_loss_in_a_public_file_is_caught(store, tmp_path, monkeypatch):
    honest = operator_log.OperatorLog.step

    def chatty(self, step, *, rate):
        honest(self, step, rate=rate)
        with self._folder.train.open("a") as file:  # the loss is None for an empty cohort
            file.write(f"# {json.dumps(step.operator['loss'])}\n")

    monkeypatch.setattr(operator_log.OperatorLog, "step", chatty)
    assert any("train.toml" in leak for leak in leaks(finished(store, tmp_path, uls_plan()), store))


def test_invariant_9_twin_an_operator_file_that_all_may_read_is_caught(store, tmp_path):
    run = finished(store, tmp_path, uls_plan())
    (run / "operator.jsonl").chmod(0o644)
    assert "operator.jsonl: mode" in leaks(run, store)


FACTS = {"base_model", "selection", "seq_len", "store_facts", "userdp", "store", "unsafe_seeds"}
"""What the first line of a run's ledger may tell: each a constant, or a word of the set-up."""


def test_invariant_9_a_run_notes_no_fact_that_is_not_on_the_list(store, tmp_path):
    """A small whole number, such as a count of people, is told from a constant by its name only."""
    model = toy_model(store)
    make_private(model, sgd(model), store, uls_plan(), out=tmp_path / "run").close()
    assert set(lines(tmp_path / "run" / "ledger.jsonl")[0]["facts"]) <= FACTS
