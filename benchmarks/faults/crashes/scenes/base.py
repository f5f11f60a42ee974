"""The interface of a scene, and the little world that scenes share."""

from __future__ import annotations

import hashlib
import json
import random
from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar

from benchmarks.faults.crashes.witness import charged_in
from benchmarks.words import WORDS, write_tokenizer

STEPS = 10
POPULATION, COHORT, NOISE, DELTA = 100, 4, 2.0, 1e-5
"""Of every run that is trained here: Poisson sampling of users, all of them add-or-remove."""
PLAN = (
    "--sampling", "users", "--population", str(POPULATION), "--cohort-size", str(COHORT),
    "--group-size", "2", "--l2-clip-norm", "1", "--delta", str(DELTA),
    "--noise-multiplier", str(NOISE), "--steps", str(STEPS),
)  # fmt: skip
MODEL = (
    "--model", "new", "--layers", "1", "--width", "16", "--heads", "2", "--engine", "reference",
    "--no-tensorboard",
)  # fmt: skip
TUNED = tuple(
    word
    for one in ("model=new", "layers=1", "width=16", "heads=2", "engine=reference")
    for word in ("--set", f"learning.{one}")
)
"""The same for a tuning."""


class Scene(ABC):
    """A command, played in a folder of its own.

    All but `problems` and `result` happens in processes that may be killed, and imports what it
    needs of `userdp`; these two judge, and read files by themselves.
    """

    name: ClassVar[str]

    @abstractmethod
    def make(self, folder: Path) -> None:
        """Make what the command needs: once, for all cases."""

    @abstractmethod
    def act(self, folder: Path) -> int:
        """What the user types, at first and after each fault, and its exit status.

        Once all is done this does nothing, and gives 0.
        """

    @abstractmethod
    def check(self, folder: Path) -> list[str]:
        """What the library itself says is wrong when all is done: stores verified, claims read.

        Run in a process of its own.
        """

    def torn(self, folder: Path) -> list[str]:
        """What is wrong with what a fault left, before the command goes on."""
        return []

    def lost(self, folder: Path) -> set[str]:
        """Charged steps whose update the fault took away; named as `left_out` takes them."""
        return set()

    def problems(self, folder: Path) -> list[str]:
        """What is wrong when all is done."""
        return []

    def result(self, folder: Path) -> str | None:
        """Digest of what must be the same however often the command was killed.

        Under test seeds, and where no charged step was lost. None where nothing is to compare.
        """
        return None


def userdp(*arguments: object) -> int:
    """Run a command line here."""
    from userdp.cli.app import run

    return run([str(one) for one in arguments])


def write_people(path: Path, *, users: int, seed: int = 0, prefix: str = "user") -> None:
    """Records of words that count upwards, as JSON Lines; some are dropped."""
    draw = random.Random(seed)
    rows: list[dict[str, str]] = [{"user": "nobody"}]
    for number in range(users):
        for _ in range(draw.randint(1, 6)):
            start = draw.randrange(len(WORDS))
            text = " ".join(WORDS[(start + n) % len(WORDS)] for n in range(draw.randint(4, 7)))
            rows.append({"user": f"{prefix}{number:03d}", "text": text})
    draw.shuffle(rows)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


def prepare(folder: Path, *, users: int = 40) -> int:
    """Make ``folder/store`` of made-up people, and leave no other copy of their text."""
    source = folder / "in.jsonl"
    write_people(source, users=users)
    write_tokenizer(folder / "tokenizer.json")
    status = userdp(
        "prepare", source, "--out", folder / "store", "--tokenizer", folder / "tokenizer.json",
        "--seq-len", 8, "--held-out-users", 0.2, "--held-out-examples", 0.2,
    )  # fmt: skip
    source.unlink()
    return status


def train(folder: Path, run: str = "run") -> int:
    """Train over ``folder/store``, or go on with it."""
    from userdp.ledger import RunFolder

    place = RunFolder(folder / run)
    if place.finished:
        return 0
    resume = ("--resume",) if place.resume.exists() else ()
    return userdp(
        "train", folder / "store", "--out", place.path, *PLAN, *MODEL,
        "--checkpoint-every", 2, *resume,
    )  # fmt: skip


def lost_steps(run: Path) -> set[int]:
    """Attempts of a run, as its ledger has them now, that no checkpoint holds."""
    ledger = run / "ledger.jsonl"
    if not ledger.exists():
        return set()
    kept = (run / "checkpoints").glob("step-*.safetensors")
    saved = max((int(path.stem.removeprefix("step-")) for path in kept), default=0)
    return set(range(saved + 1, charged_in(ledger) + 1))


def uncertain_steps(run: Path) -> set[int]:
    """Attempts that were counted beside the store, and of which the ledger's line was cut off."""
    number, found = 0, set[int]()
    for line in (run / "ledger.jsonl").read_bytes().splitlines():
        values = json.loads(line)
        if values["kind"] == "lost":
            found.update(range(number + 1, number + values["attempts"] + 1))
        number += values.get("attempts", 0) if values["kind"] == "lost" else 0
        number += values["kind"] == "attempt"
    return found


def least_epsilon() -> float:
    """A lower bound on ε of the runs that are trained here, by another accountant.

    Its estimate is an optimistic one: no right claim of a run, finished or not, is below it.
    """
    from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism

    step = from_gaussian_mechanism(
        NOISE,
        pessimistic_estimate=False,
        value_discretization_interval=1e-3,
        sampling_prob=COHORT / POPULATION,
        use_connect_dots=False,  # that way knows no optimistic estimate
    )
    return float(step.self_compose(STEPS).get_epsilon_for_delta(DELTA))


def must(status: int) -> None:
    """A step of `Scene.make` that has to succeed."""
    if status != 0:
        raise RuntimeError(f"what the scene needs could not be made: exit status {status}")


def digest_of_tensors(path: Path) -> str:
    """SHA-256 of a file of safetensors, but for what is noted beside the tensors."""
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    header.pop("__metadata__", None)
    places = json.dumps(header, sort_keys=True).encode()
    return hashlib.sha256(places + data[end:]).hexdigest()
