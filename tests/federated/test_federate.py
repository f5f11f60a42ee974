"""`userdp federate`: every algorithm in small, what it refuses, and how it goes on."""

import json
import math
import os
import random
import shlex
import signal

import pytest

from tests.speed import fast_then_slow
from tests.training.toy import attempts
from userdp import UseError, account, verify
from userdp.cli.app import run as userdp
from userdp.core.codec import plain
from userdp.core.files import write_json
from userdp.federated.algorithms import ALGORITHMS
from userdp.federated.federation_plan import claim_of
from userdp.federated.silo import BEGUN_FILE, RELEASED_FILE, Silo

SMALL = ["--silos", "2", "--rounds", "2", "--json"]


def federate(capsys, *arguments):
    status = userdp(["federate", *map(str, arguments)])
    said = capsys.readouterr()
    return status, json.loads(said.out) if said.out.startswith("{") else {}, said.err


@pytest.fixture
def play(tmp_path):
    coin = random.Random(0)
    lines = [
        {"user": f"play/{who}", "text": " ".join(coin.choices(["to", "be", "or", "not"], k=12))}
        for who in range(10)
        for _ in range(4)
    ]
    path = tmp_path / "play.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines) + "\n")
    return path


TEXT = shlex.split(
    "--set model.seq_len=16 --model new --set model.layers=1 --set model.width=8"
    " --set model.heads=2 --batch-size 5"
)
DECLARED = ["--items-per-silo", "40", "--subjects-per-silo", "10"]


@pytest.mark.parametrize("algorithm", fast_then_slow(list(ALGORITHMS)))
def test_every_algorithm_trains_on_text_and_claims_what_its_ledgers_say(
    play, tmp_path, capsys, algorithm
):
    out = tmp_path / "f"
    status, said, error = federate(
        capsys, play, "--out", out, "--algorithm", algorithm, *TEXT, *DECLARED, *SMALL
    )
    assert status == 0, error
    found = claim_of(out)
    assert found.complete
    claim = said["claim"]
    assert claim["epsilon"] == ("inf" if algorithm == "fedavg" else found.guarantee.epsilon)
    if algorithm in ("local-group-dp", "higradavg-dp", "user-ldp"):
        assert 3.99 < claim["epsilon"] <= 4.0
    if algorithm == "local-item-dp":
        by_unit = {c["unit"]: c["epsilon"] for c in said["claims_of_the_plan"]}
        assert by_unit["subject who holds one item"] <= 4.0 < by_unit["subject"]
    assert 0 < said["operator_only"]["loss"] < math.inf
    assert plain(account(ledger=out)) == claim
    for question in (lambda: account(ledger=out, delta=1e-6), lambda: verify(out)):
        with pytest.raises(UseError, match="federation"):
            question()


def test_a_deployment_is_folders_and_an_app(play, tmp_path, capsys):
    out = tmp_path / "f"
    status, said, _ = federate(capsys, play, "--out", out, *TEXT, *DECLARED, *SMALL, "--deployment")
    assert status == 0
    assert (out / "app" / "pyproject.toml").is_file()
    assert str(out.resolve()) in (out / "app" / "pyproject.toml").read_text()
    assert not (out / "silo-00" / "run").exists()
    assert (out / "silo-00").stat().st_mode & 0o777 == 0o700
    assert said["app"] == str(out / "app")
    with pytest.raises(UseError, match="at least one silo's ledger"):
        account(ledger=out)  # nothing has been charged yet


def charged(out):
    """The steps that each silo was charged."""
    return [attempts(out / f"silo-0{index}" / "run") for index in range(2)]


def interrupted(play, out, capsys, monkeypatch):
    """Ctrl-C in round 2, when silo 0 has begun its steps; what was said of it."""
    whole = Silo.run_round

    def run_round(self, asked, weights):
        if (self.index, asked) == (0, 2):
            os.kill(os.getpid(), signal.SIGINT)
        return whole(self, asked, weights)

    with monkeypatch.context() as patch:
        patch.setattr(Silo, "run_round", run_round)
        status, _, said = federate(capsys, play, "--out", out, *TEXT, *DECLARED, *SMALL)
    assert status == 130
    assert charged(out) == [2, 1]
    return said


def test_invariant_7_a_silo_finishes_its_steps_and_the_line_goes_on(
    play, tmp_path, capsys, monkeypatch
):
    out = tmp_path / "f"
    said = interrupted(play, out, capsys, monkeypatch)
    words, command = said.splitlines()[-1].split("; go on with: userdp federate ")
    assert words.endswith("interrupted in round 2 of 2, between two silos")
    status, answer, said = federate(capsys, *shlex.split(command))
    assert status == 0, said
    assert charged(out) == [2, 2]
    assert claim_of(out).complete
    assert answer["claim"]["epsilon"] == claim_of(out).guarantee.epsilon


def test_a_silo_that_was_killed_in_a_round_sits_it_out(play, tmp_path, capsys, monkeypatch):
    out = tmp_path / "f"
    interrupted(play, out, capsys, monkeypatch)
    (out / "silo-01" / RELEASED_FILE).unlink()
    write_json(out / "silo-01" / BEGUN_FILE, {"round": 2})
    status, _, said = federate(capsys, play, "--out", out, *DECLARED, *SMALL, "--resume")
    assert status == 0, said
    assert charged(out) == [2, 1]
    assert not claim_of(out).complete
