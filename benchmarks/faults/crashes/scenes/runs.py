"""Scenes around runs: training one, auditing it, choosing among several, exporting it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import ClassVar

from benchmarks.faults.crashes.scenes.base import (
    TUNED,
    Scene,
    digest_of_tensors,
    least_epsilon,
    lost_steps,
    must,
    prepare,
    train,
    userdp,
)


class Train(Scene):
    """``userdp train``, and ``--resume``."""

    name = "train"

    def make(self, folder: Path) -> None:
        must(prepare(folder))

    def act(self, folder: Path) -> int:
        return train(folder)

    def check(self, folder: Path) -> list[str]:
        from userdp.claims import claim

        run, store = claim(folder / "run"), claim(folder / "store")
        problems = [] if run.complete else ["the claim says that the run is not complete"]
        if not least_epsilon() <= run.guarantee.epsilon <= store.guarantee.epsilon:
            told = f"{run.guarantee.epsilon} by the run, {store.guarantee.epsilon} by the store"
            problems.append(f"less is claimed than was spent: {told}")
        return problems

    def lost(self, folder: Path) -> set[str]:
        return {str(step) for step in lost_steps(folder / "run")}

    def result(self, folder: Path) -> str | None:
        return digest_of_tensors(folder / "run" / "model" / "model.safetensors")


class Export(Scene):
    """``userdp export`` of a finished run."""

    name = "export"
    _PRIVATE: ClassVar = ("operator.jsonl", "resume.json", "checkpoints", "audit")

    def make(self, folder: Path) -> None:
        must(prepare(folder))
        must(train(folder))

    def act(self, folder: Path) -> int:
        out = folder / "out"
        return 0 if out.exists() else userdp("export", folder / "run", "--out", out)

    def check(self, folder: Path) -> list[str]:
        status = userdp("verify", folder / "out")
        return [] if status == 0 else ["the export does not verify"]

    def torn(self, folder: Path) -> list[str]:
        out = folder / "out"
        whole = not out.exists() or (out / "model.safetensors").exists()
        return [] if whole else ["a part of an export stands in its place"]

    def problems(self, folder: Path) -> list[str]:
        there = {path.name for path in folder.iterdir()}
        odd = there - {"out", "run", "store", "tokenizer.json"}
        problems = [f"{name} was left beside the export" for name in sorted(odd)]
        inside = {path.name for path in (folder / "out").rglob("*")}
        return problems + [f"{name} was exported" for name in inside.intersection(self._PRIVATE)]

    def result(self, folder: Path) -> str | None:
        return digest_of_tensors(folder / "out" / "model.safetensors")


class Audit(Scene):
    """``userdp audit`` of a finished run: the attack, and the extra run with canaries."""

    name = "audit"

    def make(self, folder: Path) -> None:
        must(prepare(folder, users=320))  # canaries take the place of some
        must(train(folder))

    def act(self, folder: Path) -> int:
        result = folder / "run" / "audit" / "audit.json"
        if result.exists():
            return 0
        status = userdp("audit", folder / "run", "--store", folder / "store", "--canaries", 8)
        # A bound by few canaries contradicts a right claim now and then, which is status 1.
        return 0 if result.exists() else status

    def check(self, folder: Path) -> list[str]:
        from userdp.ledger import StoreLedger

        history = StoreLedger(folder / "store").history()
        return [] if "audit" in history.looked else ["the ledger holds no look by the audit"]

    def torn(self, folder: Path) -> list[str]:
        result = folder / "run" / "audit" / "audit.json"
        return [] if not result.exists() or looked(folder, "audit") else [
            "an audit has its result, and the store's ledger no look"
        ]  # fmt: skip

    def problems(self, folder: Path) -> list[str]:
        place = folder / "run" / "audit"
        problems = [f"{path} holds people's text" for path in place.glob("work-*")]
        if not isinstance(json.loads((place / "audit.json").read_text())["passed"], bool):
            problems.append("the audit's result is not whole")
        return problems


class Sweep(Scene):
    """``userdp tune`` over two learning rates."""

    name = "sweep"

    def make(self, folder: Path) -> None:
        import shutil

        must(prepare(folder))
        must(train(folder))
        (folder / "run" / "plan.json").rename(folder / "plan.json")
        shutil.rmtree(folder / "run")
        shutil.rmtree(folder / "store")
        must(prepare(folder))

    def act(self, folder: Path) -> int:
        out = folder / "sweep"
        begun = ("--resume",) if (out / "tuning.json").exists() else (
            "--tuning", "non-private", "--plan", folder / "plan.json",
            "--learning-rate", 0.003, 0.03, *TUNED,
            "--set", "learning.checkpoint_every=2",
        )  # fmt: skip
        return userdp("tune", folder / "store", "--out", out, *begun)

    def check(self, folder: Path) -> list[str]:
        from userdp.claims import claim

        winner = claim(folder / "sweep" / "winner")
        problems = [] if winner.complete else ["the winner's claim is not complete"]
        if winner.guarantee.epsilon < least_epsilon():
            problems.append(f"the winner claims {winner.guarantee.epsilon}, less than it spent")
        return problems

    def problems(self, folder: Path) -> list[str]:
        names = {path.name for path in (folder / "sweep").glob("trial-*")}
        return [] if names == {"trial-001", "trial-002"} else [f"trials: {sorted(names)}"]

    def lost(self, folder: Path) -> set[str]:
        runs = (folder / "sweep").glob("trial-*")
        return {f"{run.name}/{step}" for run in runs for step in lost_steps(run)}

    def result(self, folder: Path) -> str | None:
        return digest_of_tensors(folder / "sweep" / "winner" / "model" / "model.safetensors")


def looked(folder: Path, what: str) -> bool:
    """Whether the store's ledger holds a look of this name; read as text."""
    ledger = folder / "store" / "ledger.jsonl"
    return ledger.exists() and f'"what":"{what}"' in ledger.read_text("utf-8")
