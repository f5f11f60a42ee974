"""The study's runs, each with its audit, and a row for each."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.audit_study.evidence import attack, evidence
from benchmarks.audit_study.setting import (
    ATTACKED,
    BATCH,
    BROKEN_EPSILON,
    CANARIES,
    LONG_STEPS,
    LONGER_STEPS,
    NOISELESS,
    PLAIN,
    RECORDS,
    REFERENCES,
    RIGHT,
    STEPS,
    WHOLE,
    config,
    plan,
)
from benchmarks.broken_runs import BROKEN
from papers.studies.runs import Row, append_row, held_out_loss, name_of, read_rows
from userdp.codec import encode
from userdp.data.store import UserStore
from userdp.plans import Plan
from userdp.training.config import PlainPlan


@dataclass(frozen=True, kw_only=True)
class Study:
    """Where everything lies.

    Args:
        work: stores and runs.
        base: the base model's folder.
        text: which of `TEXTS`.
    """

    work: Path
    base: Path
    text: str

    @property
    def store(self) -> UserStore:
        return UserStore.open(self.work / self.text)

    def jobs(self) -> Iterator[tuple[dict[str, Any], Callable[[], Row]]]:
        """Each row's key, and what makes the row."""
        key: dict[str, Any]
        if self.text != "commits":
            key = {"run": PLAIN, "n": f"{LONGER_STEPS} steps"}
            yield self._key(key), partial(self._plain, LONGER_STEPS)
        if self.text == WHOLE:
            return
        for algorithm in ("ULS", "ELS"):
            for number, epsilon in enumerate(RIGHT):
                if (algorithm, number) == ("ULS", len(RIGHT) - 1):
                    continue
                key = {"run": "right", "algorithm": algorithm, "epsilon": epsilon, "n": number}
                right = plan(algorithm, epsilon, steps=STEPS)
                yield self._key(key), partial(self._extra, right, None)
        for name in BROKEN:
            small = name == "a thousandth of the noise"
            broken = plan(
                "ULS",
                None if small else BROKEN_EPSILON,
                steps=STEPS,
                noise_multiplier=NOISELESS if small else None,
            )
            key = {"run": name, "algorithm": "ULS"}
            yield self._key(key), partial(self._extra, broken, name)
        yield self._key({"run": PLAIN}), self._plain
        yield (
            self._key({"run": "right", "algorithm": "ULS", "epsilon": 4.0, "n": "long"}),
            self._long,
        )

        for private in (False, True):
            key = {"run": ATTACKED, "of": "ULS" if private else PLAIN, "references": REFERENCES}
            yield self._key(key), partial(self._referenced, private=private)

    def _key(self, key: dict[str, Any]) -> dict[str, Any]:
        return {"text": self.text, **key}

    def _extra(self, right: Plan, broken: str | None) -> Row:
        """A run by ``right`` with canaries, watched; broken below the observer if so asked."""
        from userdp.auditing.audit_run import contradictions
        from userdp.auditing.extra_run import extra_run

        claimed = right.guarantee().epsilon
        found = extra_run(
            self.store,
            right,
            config(self.base),
            place=self.work / f"extra-{os.getpid()}",
            canaries=CANARIES,
            sabotage=None if broken is None else BROKEN[broken],
        )
        return {"claimed": claimed, **evidence(encode(found), contradictions(found, claimed))}

    def _trained(
        self, name: str, chosen: Plan | PlainPlan, *, learning_rate: float = 2e-3
    ) -> tuple[Path, float]:
        """A run made afresh, and the processor seconds that it took."""
        from userdp.training.loop import train

        out = self.work / f"{self.text}-{name}"
        shutil.rmtree(out, ignore_errors=True)
        begin = time.process_time()
        train(
            self.store,
            chosen,
            config(self.base, learning_rate=learning_rate),
            out=out,
            tensorboard=False,
        )
        return out, round(time.process_time() - begin, 1)

    def _plain(self, steps: int = LONG_STEPS) -> Row:
        """Without privacy, by default as many rows as the private run's, and the attack on it."""
        from userdp.auditing.audit_run import audit_run

        ordinary = PlainPlan(steps=steps, batch_size=BATCH)
        out, spent = self._trained(f"plain-{steps}", ordinary, learning_rate=4e-3)
        found = audit_run(out, self.store, repeat=False, most_examples=RECORDS)
        return {"inference": attack(found["inference"]), "run_cpu_seconds": spent}

    def _referenced(self, *, private: bool) -> Row:
        """A run, by default settings of the long ones, and the attack against reference runs."""
        from userdp.auditing.audit_run import audit_run

        if private:
            out, spent = self._trained("referenced-uls", plan("ULS", 4.0, steps=LONG_STEPS))
        else:
            ordinary = PlainPlan(steps=LONG_STEPS, batch_size=BATCH)
            out, spent = self._trained("referenced-plain", ordinary, learning_rate=4e-3)
        found = audit_run(
            out, self.store, repeat=False, references=REFERENCES, most_examples=RECORDS
        )
        return {
            "inference": attack(found["inference"]),
            "references": attack(found["references"]),
            "run_cpu_seconds": spent,
            "held_out_gain": self._gain(out),
            **({"claimed": found["claimed_epsilon"]} if private else {}),
        }

    def _gain(self, out: Path) -> float:
        """By how much a run lowered the loss on held-out people, in nats a token.

        Of a model that learned nothing, an attack at chance says nothing.
        """
        from userdp.data.splits import Split
        from userdp.training.models import read_model

        people = self.store.split(Split.HELD_OUT_USERS)
        before, after = (
            held_out_loss(read_model(str(model)), people, RECORDS)[0]
            for model in (self.base, out / "model")
        )
        return before - after

    def _long(self) -> Row:
        """ULS at ε = 4, trained and then audited by every means."""
        from userdp.auditing.audit_run import audit_run

        out, spent = self._trained("uls", plan("ULS", 4.0, steps=LONG_STEPS))
        attacked = audit_run(out, self.store, repeat=False, most_examples=RECORDS)
        middle = time.process_time()
        found = audit_run(out, self.store, inference=False, canaries=CANARIES)
        return {
            "claimed": found["claimed_epsilon"],
            **evidence(found["extra_run"], found["flagged"]),
            "inference": attack(attacked["inference"]),
            "run_seconds": found["run_seconds"],
            "run_cpu_seconds": spent,
            "extra_run_cpu_seconds": round(time.process_time() - middle, 1),
        }


def run(work: Path, base: Path, results: Path, texts: list[str], *, only_long: bool) -> None:
    """All missing rows; or those of the long runs."""
    for text in texts:
        for key, make in Study(work=work, base=base, text=text).jobs():
            if only_long and key["run"] not in (PLAIN, ATTACKED) and key.get("n") != "long":
                continue
            if name_of(key) in {name_of(row["key"]) for row in read_rows(results)}:
                continue
            begin = time.process_time()
            row = make()
            spent = round(time.process_time() - begin, 1)
            append_row(results, {"key": key, **row, "cpu_seconds": spent})
            print(f"{name_of(key)}: {spent:.0f} s of processor", file=sys.stderr, flush=True)
