"""`userdp federate` and the figures of Marathe et al., each in very small."""

import json
import math
import random

import pytest

from tests.speed import fast_then_slow
from userdp.cli.app import run as userdp
from userdp.federated.algorithms import ALGORITHMS
from userdp.federated.simulation import claim_of

SMALL = ["--silos", "2", "--rounds", "2", "--runtime", "in-process", "--json"]


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


NEW = [
    "--model",
    "new",
    *["--set", "model.layers=1", "--set", "model.width=8", "--set", "model.heads=2"],
]
TEXT = ["--set", "model.seq_len=16", *NEW, "--batch-size", "5"]
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
    assert federate(capsys, out, "--claim", "--json")[1]["claim"] == claim


def test_a_deployment_is_folders_and_an_app(play, tmp_path, capsys):
    out = tmp_path / "f"
    options = [a if a != "in-process" else "deployment" for a in SMALL]
    status, said, _ = federate(capsys, play, "--out", out, *TEXT, *DECLARED, *options)
    assert status == 0
    assert (out / "app" / "pyproject.toml").is_file()
    assert str(out.resolve()) in (out / "app" / "pyproject.toml").read_text()
    assert not (out / "silo-00" / "run").exists()
    assert (out / "silo-00").stat().st_mode & 0o777 == 0o700
    assert said["app"] == str(out / "app")
    status, _, error = federate(capsys, out, "--claim")  # nothing has been charged yet
    assert status == 2
    assert "at least one silo's ledger" in error


@pytest.mark.parametrize(
    ("arguments", "words"),
    fast_then_slow(
        [
            (["nowhere.jsonl", *DECLARED], "no input at nowhere.jsonl"),
            (["PLAY", *DECLARED, "--model", "nowhere"], "no tokenizer at nowhere"),
            (["PLAY"], "--items-per-silo"),
            (["PLAY", *DECLARED, "--batch-size", "50"], "--batch-size must be"),
            (["PLAY", *DECLARED, "--silos", "60", "--batch-size", "5"], "has no subjects"),
            (
                ["PLAY", *DECLARED, "--silos-per-round", "9", "--batch-size", "5"],
                "--silos-per-round",
            ),
            (["PLAY", *DECLARED, "--epsilon", "nan", "--batch-size", "5"], "--epsilon must be"),
            (["PLAY", *DECLARED, "--algorithm", "sgd"], "sgd"),
            (["PLAY", "--resume"], "cannot read a federation plan"),
            (["PLAY", *DECLARED, "--device", "cuda", "--runtime", "simulation"], "in-process"),
        ],
        fast=4,
    ),
)
def test_bad_use_is_told_at_the_start_and_leaves_nothing(play, tmp_path, capsys, arguments, words):
    out = tmp_path / "f"
    given = [str(play) if a == "PLAY" else a for a in arguments]
    options = ["--silos", "2"] if "--silos" not in given else []
    if "--runtime" not in given:
        options += ["--runtime", "in-process"]
    status, _, error = federate(capsys, *given, "--out", out, "--set", "model.seq_len=16", *options)
    assert status == 2
    assert words in error.replace("\n", " ")
    assert not out.exists()


def test_what_is_no_federation_has_no_claim(tmp_path, capsys):
    status, _, error = federate(capsys, tmp_path, "--claim")
    assert status == 2
    assert "a federation plan" in error
