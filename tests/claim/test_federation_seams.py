"""What a federation claims, where somebody stops it, spreads it, or counts on where people are."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tests.claim.lives import Teller, seam
from tests.federated.plans import plan
from tests.federated.toys import images
from userdp.federated.data import DATA_FILE, SubjectItems, spread
from userdp.federated.plan import FederationPlan
from userdp.federated.simulation import make_federation, run_in_process
from userdp.federated.text import encode

SILOS = 4
LETTERS = "abcdefghijklmnopqrst"


def texts(path: Path, users: str = LETTERS) -> Path:
    """Twelve records each of people who write nothing but their own letter and a number."""
    lines = [{"user": who, "text": f"{who * 5} {n:02d}"} for who in users for n in range(12)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def federate(tell: Teller, data: Path, out: Path, *options: object) -> dict:
    """A federation of one round of one step over people's letters, all of whose items are drawn."""
    return tell.done(
        "federate", data, "--out", out, "--silos", SILOS, "--rounds", 1, "--seq-len", 9,
        "--width", 2, "--group-size", 12, "--batch-size", 4, "--items-per-silo", 40,
        "--subjects-per-silo", 20, *options,
    )  # fmt: skip


def memberships(federation: Path) -> list[Counter[bytes]]:
    """The items of each silo."""
    parts = (SubjectItems.load(path) for path in sorted(federation.glob(f"silo-*/{DATA_FILE}")))
    return [Counter(row.tobytes() for row in part.rows) for part in parts]


def without(silos: list[Counter[bytes]], letter: str) -> list[Counter[bytes]]:
    number = encode(letter)[0]
    return [
        Counter({row: n for row, n in silo.items() if number not in np.frombuffer(row, np.int64)})
        for silo in silos
    ]


@seam("a federation that was stopped claims the rounds so far")
def test_a_federation_that_somebody_stopped_claims_its_whole_plan(tmp_path):
    """Two rounds are planned; after the first, somebody who sees the model stops the federation.

    ε of the steps so far (two in each of three silos: 6) is 18.1, and that of the plan (12) is
    24.7. The moment was chosen by what was released, so that only the whole plan's ε bounds it.
    """
    made = plan()
    draw = np.random.default_rng(0)
    parts = [part.capped(made.group_size, draw)[0] for part in spread(images(20), 3, draw)]
    make_federation(tmp_path / "federation", made, parts)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_in_process(tmp_path / "federation", made, on_round=stop)
    said = Teller().done("federate", tmp_path / "federation", "--claim")
    assert float(said["claim"]["epsilon"]) >= made.guarantee().epsilon


@seam("a public seed splits and spreads the items of everybody with one stream of coins")
def test_one_persons_absence_moves_nobody_elses_items_between_silos(tmp_path):
    """The same federation is made with and without the first person, under the same --seed.

    The seed is public, and one stream of coins serves all items in turn: who is missing shifts the
    coins of everybody after them. Most of the others' items change their silo, or from training to
    held-out, where the price counts on none. Coins have to be secret (then the same data is spread
    in another way each time), or each person's own (then nobody else moves).
    """
    tell = Teller()
    everybody = texts(tmp_path / "all.jsonl")
    fewer = texts(tmp_path / "fewer.jsonl", LETTERS[1:])
    deployment = ("--runtime", "deployment", "--seed", 0)
    federate(tell, everybody, tmp_path / "one", *deployment)
    federate(tell, everybody, tmp_path / "again", *deployment)
    federate(tell, fewer, tmp_path / "fewer", *deployment)
    one, again = (without(memberships(tmp_path / name), LETTERS[0]) for name in ("one", "again"))
    secret = one != again
    moved = sum(
        (a - b).total()
        for a, b in zip(one, without(memberships(tmp_path / "fewer"), LETTERS[0]), strict=True)
    )
    assert secret or moved == 0


@pytest.mark.parametrize("bound", [1, 2])
@seam("--silos-per-subject is believed, whatever the data hold")
def test_a_subject_in_more_silos_than_declared_costs_what_it_costs(tmp_path, bound):
    """``--silos-per-subject 1`` (or 2), where everybody's items lie in all four silos.

    The noise is calibrated for the steps of one silo (or two), ε = 4; a person is in the steps of
    four. Priced so, ε is 6.45 (or 5.25). Items beyond the declared number of silos are to be
    absent, or the claim counts the silos that people are in.
    """
    data = texts(tmp_path / "all.jsonl")
    runtime = ("--runtime", "in-process", "--silos-per-subject", bound)
    said = federate(Teller(), data, tmp_path / "f", *runtime)
    held = Counter(
        letter
        for silo in memberships(tmp_path / "f")
        for letter in {np.frombuffer(row, np.int64)[0] for row in silo}
    )
    made = FederationPlan.from_dict(said["plan"])
    worst = min(max(held.values()), SILOS)
    true = dataclasses.replace(made, silos_per_subject=worst).guarantee()
    assert float(said["claim"]["epsilon"]) >= true.epsilon - 1e-9
