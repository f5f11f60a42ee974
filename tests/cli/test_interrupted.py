"""What an interrupted command says: where it stopped, and a line that goes on as it stands."""

import os
import shlex
import signal

import pytest

from tests.cli.test_train import MODEL, PLAN
from tests.training.test_crash import SignalIn
from tests.training.toy import attempts
from userdp.cli.app import main, say_how_to_go_on
from userdp.core.errors import Interrupted
from userdp.training import loop

STOPPED = Interrupted("after step 1 of 2", resume=True)


def test_train_says_after_which_step_and_its_line_goes_on(store, tmp_path, monkeypatch, userdp):
    line = ("train", store.path, "--out", tmp_path / "my run", *PLAN, *MODEL)
    with monkeypatch.context() as patch:
        SignalIn(patch, 2)
        status, out, err = userdp(*line)
    assert (status, out) == (130, "")
    words, again = err[err.rindex("interrupted after") :].split("; go on with: userdp ")
    assert words == "interrupted after step 2 of 3"
    assert again.endswith(" --resume")
    assert userdp(*shlex.split(again))[0] == 0
    assert attempts(tmp_path / "my run") == 3


def test_before_the_run_there_is_nothing_to_resume(store, tmp_path, monkeypatch, userdp):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(loop, "load_model", interrupted)
    status, _, err = userdp("train", store.path, "--out", tmp_path / "run", *PLAN, *MODEL)
    assert status == 130
    assert "interrupted before anything was charged; run it again: userdp train" in err
    assert "--resume" not in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_any_command_ends_with_130_and_its_own_line(monkeypatch, capsys, number):
    def stop(*arguments, **options):
        os.kill(os.getpid(), number)
        signal.pause()

    monkeypatch.setattr("userdp.data.user_store.UserStore.open", stop)
    monkeypatch.setattr("sys.argv", ["userdp", "store", "stats", "a store"])
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit, match="130"):
            main()
    finally:
        signal.signal(signal.SIGTERM, before)
    told = capsys.readouterr().err
    assert told.strip().endswith("interrupted; run it again: userdp store stats 'a store'")


@pytest.mark.parametrize(
    ("line", "again"),
    [
        ("train store --out run", "go on with: userdp train store --out run --resume\n"),
        ("train store --out run --resume", "go on with: userdp train store --out run --resume\n"),
        # It trains on the way, and begins again.
        ("demo --out demo", "run it again: userdp demo --out demo\n"),
    ],
)
def test_the_line_that_goes_on(line, again, capsys):
    words = line.split()
    say_how_to_go_on(STOPPED, words[0], words)
    assert capsys.readouterr().err == f"interrupted after step 1 of 2; {again}"


def test_of_several_processes_one_says_it(monkeypatch, capsys):
    monkeypatch.setenv("RANK", "1")
    say_how_to_go_on(STOPPED, "train", ["train", "store"])
    assert capsys.readouterr().err == ""
