"""What an interrupted command says: where it stopped, and a line that goes on as it stands."""

import os
import shlex
import signal

import pytest

from tests.cli.test_train import MODEL, changed, prepared, store, train
from tests.training.test_interrupts import SignalIn
from tests.training.toy import attempts
from userdp.cli.app import run as userdp
from userdp.cli.output import last_words
from userdp.core.errors import Interrupted
from userdp.training import loop

__all__ = ["prepared", "store"]


def interrupted(*arguments, **options):
    raise KeyboardInterrupt


def test_train_says_after_which_step_and_its_line_goes_on(store, tmp_path, monkeypatch, capsys):
    with monkeypatch.context() as patch:
        SignalIn(patch, 2)
        assert train(store, tmp_path / "my run", *changed(), *MODEL) == 130
    out, said = capsys.readouterr()
    assert out == ""
    words, line = said.splitlines()[-1].split("; go on with: userdp ")
    assert words == "interrupted after step 2 of 3"
    assert line.endswith(" --resume")
    assert userdp(shlex.split(line)) == 0
    assert attempts(tmp_path / "my run") == 3


def test_before_the_run_there_is_nothing_to_resume(store, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(loop, "load_model", interrupted)
    assert train(store, tmp_path / "run", *changed(), *MODEL) == 130
    said = capsys.readouterr().err
    assert "interrupted before anything was charged; run it again: userdp train" in said
    assert "--resume" not in said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_any_command_ends_with_130_and_its_own_line(monkeypatch, capsys, number):
    def stop(*arguments, **options):
        os.kill(os.getpid(), number)
        signal.pause()

    monkeypatch.setattr("userdp.data.store.UserStore.open", stop)
    assert userdp(["store", "stats", "a store"]) == 130
    assert capsys.readouterr().err.endswith(
        "interrupted; run it again: userdp store stats 'a store'\n"
    )


def test_a_second_price_is_not_charged_by_the_line_that_goes_on():
    line = ["train", "store", "--out", "run", "--resume", "--set", "run.charge_again=true"]
    told = last_words(Interrupted("after step 1 of 2", resume=True), "train", line)
    assert told is not None
    assert told.endswith("userdp train store --out run --resume")


def test_commands_that_train_on_the_way_begin_again():
    stop = Interrupted("after step 1 of 2", resume=True)
    told = last_words(stop, "demo", ["demo", "--out", "demo"])
    assert told is not None
    assert told.endswith("; run it again: userdp demo --out demo --overwrite")
    assert last_words(stop, "demo", ["demo", "--out", "demo", "--overwrite"]) == told


def test_under_torchrun_the_line_starts_as_many_processes_and_one_of_them_says_it(monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "0")
    stop = Interrupted("after step 1 of 2", resume=True)
    told = last_words(stop, "train", ["train", "store"])
    assert told is not None
    assert told.endswith("torchrun --nproc-per-node 4 -m userdp train store --resume")
    monkeypatch.setenv("RANK", "1")
    assert last_words(stop, "train", ["train", "store"]) is None
