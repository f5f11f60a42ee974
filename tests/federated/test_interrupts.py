"""A federation that is interrupted between two silos goes on, and no silo's steps are repeated."""

import os
import shlex
import signal

import pytest

from tests.federated.test_federate import DECLARED, SMALL, TEXT, federate, play
from tests.training.toy import attempts
from userdp.core.files import write_json
from userdp.federated.silo import BEGUN_FILE, RELEASED_FILE, Silo
from userdp.federated.simulation import claim_of

pytest.importorskip("sklearn", reason="the extra `federated` is not installed")

__all__ = ["play"]


def interrupt_in(monkeypatch, silo, number):
    whole = Silo.run_round

    def run_round(self, asked, weights):
        if (self.index, asked) == (silo, number):
            os.kill(os.getpid(), signal.SIGINT)
        return whole(self, asked, weights)

    monkeypatch.setattr(Silo, "run_round", run_round)


def test_invariant_7_a_silo_finishes_its_steps_and_the_line_goes_on(
    play, tmp_path, capsys, monkeypatch
):
    out = tmp_path / "f"
    line = [play, "--out", out, *TEXT, *DECLARED, *SMALL]
    with monkeypatch.context() as patch:
        interrupt_in(patch, 0, 2)
        status, _, said = federate(capsys, *line)
    assert status == 130
    words, command = said.splitlines()[-1].split("; go on with: userdp federate ")
    assert words.endswith("interrupted in round 2 of 2, between two silos")
    runs = [out / f"silo-{index:02d}" / "run" for index in range(2)]
    assert [attempts(run) for run in runs] == [2, 1]
    status, answer, said = federate(capsys, *shlex.split(command))
    assert status == 0, said
    assert [attempts(run) for run in runs] == [2, 2]
    assert claim_of(out).complete
    assert answer["claim"]["epsilon"] == claim_of(out).guarantee.epsilon


def test_a_silo_that_was_killed_in_a_round_sits_it_out(play, tmp_path, capsys, monkeypatch):
    out = tmp_path / "f"
    with monkeypatch.context() as patch:
        interrupt_in(patch, 0, 2)
        assert federate(capsys, play, "--out", out, *TEXT, *DECLARED, *SMALL)[0] == 130
    (out / "silo-01" / RELEASED_FILE).unlink()
    write_json(out / "silo-01" / BEGUN_FILE, {"round": 2})
    before = attempts(out / "silo-01" / "run")
    status, _, said = federate(capsys, play, "--out", out, *SMALL, "--resume")
    assert status == 0, said
    assert attempts(out / "silo-01" / "run") == before
    assert not claim_of(out).complete
