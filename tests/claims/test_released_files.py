"""What is handed on is what was claimed: other weights, other constants, made-up releases show."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest

from tests.claims.lives import PLAN, Teller, begin, copied
from tests.exports import write_anew
from tests.speed import fast_then_slow
from tests.training.conftest import prepared
from userdp.core.files import write_json
from userdp.data.user_store import UserStore

__all__ = ["prepared"]


@pytest.fixture(scope="module")
def honest(prepared, tmp_path_factory) -> Path:
    """A finished run, and one of other weights beside it."""
    folder = tmp_path_factory.mktemp("released")
    store = UserStore.open(shutil.copytree(prepared, folder / "store"))
    begin(store, folder / "run")
    begin(store, folder / "other", seed=1)
    return folder


@pytest.fixture
def run(honest, tmp_path) -> Path:
    return copied(honest / "run", tmp_path / "run")


def told_by(command: str, run: Path) -> float:
    """ε that a command tells of a run's model; infinite where it refuses."""
    tell = Teller()
    if command == "report":
        status, values = tell(
            "report", run, "--public", "--out", run.parent / "page.html", "--overwrite"
        )
        values = values["runs"][0] if status == 0 else {}
    elif command == "export":
        status, values = tell("export", run, "--out", run.parent / "export")
        values = values["claim"] if status == 0 else {}
    else:
        status, values = tell("generate", run, "--records", 1, "--max-tokens", 2)
    return float(values["epsilon"]) if status == 0 else math.inf


def swap(run: Path, honest: Path) -> None:
    name = "model.safetensors"
    shutil.copyfile(honest / "other" / "model" / name, run / "model" / name)


@pytest.mark.parametrize("command", fast_then_slow(["report", "export", "generate"]))
def test_swapped_weights_have_no_claim(run, honest, command):
    """RUN/model/model.safetensors is replaced by the weights of another training.

    Those may be of a run without privacy, of which no ε is true: the page, the card and `generate`
    go on telling ε = 2.47. They are to refuse, or to claim nothing.
    """
    if not math.isclose(told_by(command, run), PLAN.guarantee().epsilon):
        raise RuntimeError("the honest run does not claim what it should")
    swap(run, honest)
    assert told_by(command, run) == math.inf


@pytest.mark.slow
@pytest.mark.parametrize("kept", [1, 3], ids=["no attempt", "two attempts"])
def test_a_cut_ledger_of_a_finished_run_lowers_no_claim(run, kept):
    """The last lines of a finished run's ledger are lost: the hash chain of the rest still holds.

    The weights in RUN/model have seen six steps, ε = 2.47; those of two steps would be 1.92.
    """
    ledger = run / "ledger.jsonl"
    ledger.write_bytes(b"".join(ledger.read_bytes().splitlines(keepends=True)[:kept]))
    assert Teller().of_model(run)[0] >= PLAN.guarantee().epsilon


@pytest.mark.parametrize("written", ["ledger", "ledger and config"])
def test_a_ledger_that_was_written_anew_lowers_no_claim(run, written):
    """A ledger with ten times the noise, its hash chain computed anew, which anybody can do.

    ε falls from 2.47 to 0.08, for the same weights. That it is another ledger shows in plan.json,
    and, where that is written anew as well, in what closes the chain: the finishing line is to hold
    the digests of weights, plan and config, so that each of them tells. (Who writes all of them
    anew is found by a signature alone.)
    """

    def quieter(line):
        if line["kind"] == "run":
            line["plan"]["noise"]["multiplier"] *= 10
        if line["kind"] == "attempt":
            line["step"]["noise_std"] *= 10
        return line

    write_anew(run / "ledger.jsonl", quieter)
    if written == "ledger and config":
        kept = json.loads((run / "plan.json").read_text())
        kept["noise"]["multiplier"] *= 10
        write_json(run / "plan.json", kept)
    claimed, _ = Teller().of_model(run)
    assert claimed >= PLAN.guarantee().epsilon
