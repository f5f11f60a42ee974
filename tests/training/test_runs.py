# ruff: noqa: PT012  (what raises is a whole run, broken off inside)
"""Run folders: begun whole or not at all, and resumed from any point of their beginning."""

import pytest

from tests.plans import uls_plan
from tests.training.toy import CONFIG
from userdp.claims import claim
from userdp.claims.subject import digest_of
from userdp.core import files
from userdp.core.errors import UseError
from userdp.ledger import RunFolder, StoreLedger
from userdp.ledger.lines import Settle
from userdp.training.loop import train


class Killed(BaseException):
    """Stands for a process that is no more."""


def killed_before_its_store_was_told(store, run, monkeypatch):
    """A run that ended between its own last line and its store's."""

    def killed(*arguments, **options):
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Settle, "is_new", killed)
        train(store, uls_plan(), CONFIG, out=run)
    assert RunFolder(run).finished
    history = StoreLedger(store.path).history()
    assert history.settled == set()
    assert history.released == []


def told_of(store, run):
    """What a store should know of a run that ended."""
    history = StoreLedger(store.path).history()
    (released,) = history.released
    assert history.settled == {RunFolder(run).run_id}
    assert released.weights == digest_of(run / "model")
    assert released.lineage == claim(run).lineage.plain
    return history


def test_a_kill_before_the_store_was_told_of_the_end_is_mended_by_resuming(
    store, tmp_path, monkeypatch
):
    run = tmp_path / "run"
    killed_before_its_store_was_told(store, run, monkeypatch)
    before = (run / "ledger.jsonl").read_bytes()
    assert train(store, uls_plan(), CONFIG, out=run, resume=True) is None
    assert (run / "ledger.jsonl").read_bytes() == before, "no step was taken"
    lines_before = told_of(store, run).lines
    with pytest.raises(UseError, match="finished"):
        train(store, uls_plan(), CONFIG, out=run, resume=True)
    assert StoreLedger(store.path).history().lines == lines_before
    assert claim(store.path).complete


def test_a_run_that_cannot_begin_leaves_no_folder(store, tmp_path, monkeypatch):
    def full(*arguments, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "write_json", full)
    with pytest.raises(OSError, match="No space"):
        train(store, uls_plan(), CONFIG, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert StoreLedger(store.path).charges() == []
