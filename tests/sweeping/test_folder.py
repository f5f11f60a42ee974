"""What others on the machine may see of a sweep: its winner, once it is copied out."""

import shutil
import stat

import pytest

import userdp
from tests.ledgers import begun, finish, run_with
from tests.modes import made_with, open_to_others
from tests.plans import uls_plan
from tests.speed import fast_then_slow
from tests.sweeping.launch import request, swept
from userdp.claims.released_files import bound_files
from userdp.core.errors import UseError
from userdp.ledger import RunFolder, RunRecord
from userdp.ledger.run_folder import DIVERGED
from userdp.sweeping.sweep_folder import SweepFolder, copy_released

PLAN = uls_plan()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "umask"),
    fast_then_slow([("non-private", 0o022), ("non-private", 0o000), ("private-selection", 0o000)]),
)
def test_a_sweep_is_closed_from_its_first_moment_but_for_its_winner(
    store, tmp_path, two_trials, monkeypatch, mode, umask
):
    """Listing DIR tells how many trials there were; a trial holds what was not chosen."""
    out = tmp_path / "above" / "sweep"
    with made_with(umask, monkeypatch):
        swept(store, out, request(store, mode))
    assert stat.S_IMODE(out.stat().st_mode) == 0o700
    assert {name.split("/")[0] for name in open_to_others(out)} == {"winner"}


@pytest.mark.parametrize("how", ["added", "changed"])
def test_what_was_put_into_a_trials_model_does_not_come_with_the_winner(tmp_path, how):
    """Only the files that the trial released are copied; a changed one ends the copy."""
    run, winner = SweepFolder(tmp_path).run(1), RunFolder(tmp_path / "winner")
    run.model.mkdir(parents=True)
    (run.model / "config.json").write_text("{}")
    finish(begun(run.ledger, None), files=bound_files(run))
    if how == "added":
        (run.model / "README.md").write_text("a word")
        copy_released(RunRecord.read(run.path), winner)
        assert [path.name for path in winner.model.iterdir()] == ["config.json"]
    else:
        (run.model / "config.json").write_text('{"note": "a word"}')
        with pytest.raises(UseError, match="is not what the run released"):
            copy_released(RunRecord.read(run.path), winner)
        assert not winner.path.exists()


def test_a_winner_that_diverged_says_so_and_export_refuses_it(tmp_path):
    run, winner = SweepFolder(tmp_path).run(1), RunFolder(tmp_path / "winner")
    run_with(run.path, PLAN, PLAN.steps, finished=True)
    run.model.mkdir()
    run.log({"kind": DIVERGED})
    winner.path.mkdir()
    copy_released(RunRecord.read(run.path), winner)
    shutil.copyfile(run.ledger, winner.ledger)
    winner.model.mkdir()
    with pytest.raises(UseError, match="diverged"):
        userdp.export(winner.path, out=tmp_path / "out")
