"""What a plan announces as its total is what the run's claim says, to the last printed digit."""

from __future__ import annotations

import random
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.claims.lives import LEARNING, SHAPE, Teller
from tests.plans_room.conftest import synthetic_norms
from tests.speed import fast_then_slow
from tests.training.toy import toy_store
from userdp.cli.app import run as userdp
from userdp.core.vocabulary import round_up

PLANNING = ("--budget", 64, "--steps", 2, "--delta", 1e-6, "--most-noise", 1000)
TOY = ("--model", "new", *SHAPE, *LEARNING)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory) -> Path:
    return toy_store(tmp_path_factory.mktemp("prepared")).path


@dataclass
class People:
    """A store, its norms, and commands over them."""

    folder: Path
    capsys: pytest.CaptureFixture[str]
    tell: Teller

    @property
    def store(self) -> Path:
        return self.folder / "store"

    def ask(self, epsilon: float, what: str) -> None:
        self.tell.done("store", "stats", self.store, "--epsilon", epsilon, "--ask", what)

    def plan(self, *options: object, epsilon: float = 4, population: int | None = 1000) -> str:
        """The total that `userdp plan` prints."""
        given = ("--population", population) if population else ()
        words = ("plan", self.store, "--norms", self.folder / "norms.json", *PLANNING, *given,
                 "--epsilon", epsilon, "--out", self.folder / "plan.json", "--overwrite",
                 *options)  # fmt: skip
        self.capsys.readouterr()
        assert userdp([*map(str, words)]) == 0
        return total_in(self.capsys.readouterr().out)

    def train(self, name: str, *options: object) -> str:
        """ε that the run's claim prints."""
        given = options or ("--plan", self.folder / "plan.json")
        done = self.tell.done("train", self.store, "--out", self.folder / name, *given, *TOY)
        assert round_up(done["epsilon"]) == round_up(self.tell.epsilon(self.folder / name)[0])
        return round_up(done["epsilon"])


def total_in(said: str) -> str:
    return re.search(r"([\d.]+) in\s+all", said)[1]


@pytest.fixture
def people(prepared, tmp_path, capsys) -> People:
    shutil.copytree(prepared, tmp_path / "store")
    synthetic_norms(most=4).save(tmp_path / "norms.json")
    return People(tmp_path, capsys, Teller())


@pytest.mark.pitfall(number=36)
@pytest.mark.parametrize("seed", fast_then_slow(range(3), fast=0))
def test_random_lives(people, seed):
    """Answers, plans and runs in any order: each total is the claim that follows."""
    draw = random.Random(seed)
    for number in range(3):
        for _ in range(draw.randint(0, 2)):
            people.ask(draw.choice([0.1, 1 / 3, 0.5]), draw.choice(["users", "median"]))
        total = people.plan(epsilon=draw.choice([5, 8]))
        if draw.random() < 0.8:
            assert people.train(f"run-{number}") == total, number


def test_of_a_budget_all_is_claimed_and_said(people):
    people.tell.done("store", "budget", people.store, "--epsilon", 8, "--delta", 1e-5)
    people.ask(0.5, "users")
    total = people.plan()
    assert total == "8.0000"
    assert people.train("run") == total


def test_the_preset_says_what_came_before(people):
    """Equal arguments give equal constants; what is added to them is said before training."""
    people.ask(1, "users")
    budget = ("--epsilon", 4, "--population", 20_000, "--steps", 2)
    epsilon = people.train("run", *budget)
    said = people.capsys.readouterr().err
    assert (total_in(said), "costs nothing by --dry-run" in said) == (epsilon, True)
    assert 4.9 < float(epsilon) <= 5
