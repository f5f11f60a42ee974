"""What a federation claims, where somebody stops it, spreads it, or counts on where people are."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from pathlib import Path

import pytest

from tests.claims.lives import Teller
from tests.federated.plans import NUMBERS, plan
from tests.federated.toys import images
from userdp.core.codec import decode
from userdp.core.stages import NoProgress
from userdp.data.splits import Split
from userdp.data.user_store import UserStore
from userdp.federated import simulation
from userdp.federated.federation_plan import STORE, FederationPlan
from userdp.federated.simulation import make_federation, run_in_process
from userdp.sampling.coins import secret_generator

SILOS = 4
LETTERS = "abcdefghijklmnopqrst"


def texts(path: Path, users: str = LETTERS) -> Path:
    """Twelve records each of people who write nothing but their own letter and a number."""
    lines = [{"user": who, "text": f"{who * 5} {n:02d}"} for who in users for n in range(12)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def federate(tell: Teller, data: Path, out: Path, *options: object) -> dict:
    """A federation of one round of one step over people's letters, a tenth of whose items is drawn.

    A person writes the same text in all records, so that an item tells whose it is.
    """
    return tell.done(
        "federate", data, "--out", out, "--silos", SILOS, "--rounds", 1, "--model", "new",
        *(word for one in ("seq_len=9", "layers=1", "width=8", "heads=2")
          for word in ("--set", f"model.{one}")), "--group-size", 12,
        "--batch-size", 4, "--items-per-silo", 40, "--subjects-per-silo", 20, *options,
    )  # fmt: skip


def memberships(federation: Path) -> list[Counter[tuple[bytes, str, bytes]]]:
    """The items of each silo: whose, of which split, and the tokens."""
    silos = []
    for path in sorted(federation.glob(f"silo-*/{STORE}")):
        store, items = UserStore.open(path), Counter()
        for name in (Split.TRAIN, Split.HELD_OUT_EXAMPLES):
            split = store.split(name)
            for user, count in enumerate(split.counts):
                rows = split.gather([user] * count, range(count))
                who = store.user_ids()[split.rows[user]]
                items.update((who, str(name), rows.row(row).tobytes()) for row in range(count))
        silos.append(items)
    return silos


def without(silos: list[Counter], letter: str) -> list[Counter]:
    who = letter.encode()
    return [Counter({item: n for item, n in silo.items() if item[0] != who}) for silo in silos]


@pytest.mark.slow
def test_a_federation_that_somebody_stopped_claims_its_whole_plan(tmp_path):
    """Two rounds are planned; after the first, somebody who sees the model stops the federation.

    ε of the steps so far (two in each of three silos: 6) is 18.1, and that of the plan (12) is
    24.7. The moment was chosen by what was released, so that only the whole plan's ε bounds it.
    """
    made = plan()
    make_federation(tmp_path / "federation", made, images(20), tokenizer=NUMBERS)

    class Stops(NoProgress):
        def at(self, done: int) -> None:
            if done:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_in_process(tmp_path / "federation", made, progress=Stops())
    said = Teller().done("account", "--ledger", tmp_path / "federation")
    assert not said["complete"]
    assert float(said["epsilon"]) >= made.guarantee().epsilon


def moved_by_an_absence(tmp_path: Path) -> int:
    """How many items of others lie elsewhere where one person is missing."""
    tell = Teller()
    everybody = texts(tmp_path / "all.jsonl")
    fewer = texts(tmp_path / "fewer.jsonl", LETTERS[1:])
    deployment = ("--deployment", "--set", "model.seed=0")
    federate(tell, everybody, tmp_path / "one", *deployment)
    federate(tell, fewer, tmp_path / "fewer", *deployment)
    one = without(memberships(tmp_path / "one"), LETTERS[0])
    return sum((a - b).total() for a, b in zip(one, memberships(tmp_path / "fewer"), strict=True))


@pytest.mark.pitfall(number=40)
def test_one_persons_absence_moves_nobody_elses_items_between_silos(tmp_path):
    """The same federation is made with and without the first person, under the same seed.

    Where an item lies, and whether it is held out, is decided by coins of its own person.
    """
    assert moved_by_an_absence(tmp_path) == 0


@pytest.mark.slow
def test_broken_twin_one_stream_of_coins_for_everybody_is_caught(tmp_path, monkeypatch):
    def streamed(user, records, *, silos, most, seed=0, alpha=None):
        return coins.integers(silos, size=records)

    coins = secret_generator(0)
    monkeypatch.setattr(simulation, "places", streamed)
    assert moved_by_an_absence(tmp_path) > 0


@pytest.mark.slow
@pytest.mark.parametrize("bound", [1, 2])
def test_a_subject_in_more_silos_than_declared_costs_what_it_costs(tmp_path, bound):
    """``--silos-per-subject 1`` (or 2), where everybody has items for all four silos.

    The noise is calibrated for the steps of one silo (or two), ε = 4. Were a person in the steps of
    four, ε would be 6.45 (or 5.25): the spread keeps to the bound.
    """
    data = texts(tmp_path / "all.jsonl")
    runtime = ("--silos-per-subject", bound)
    said = federate(Teller(), data, tmp_path / "f", *runtime)
    held = Counter(who for silo in memberships(tmp_path / "f") for who in {i[0] for i in silo})
    made = decode(FederationPlan, said["plan"], what="the plan")
    worst = min(max(held.values()), SILOS)
    assert worst == bound
    true = dataclasses.replace(made, silos_per_subject=worst).guarantee()
    assert float(said["claim"]["epsilon"]) >= true.epsilon - 1e-9
