"""A scene of a federation: two silos in one process, some rounds."""

from __future__ import annotations

import json
import random
from pathlib import Path

from benchmarks.faults.crashes.scenes.base import Scene, digest_of_tensors, userdp

_ROUNDS = 3


class Federate(Scene):
    """``userdp federate``, and ``--resume``."""

    name = "federate"

    def make(self, folder: Path) -> None:
        draw = random.Random(0)
        rows = [
            {"user": f"play/{who}", "text": " ".join(draw.choices(["to", "be", "or", "not"], k=12))}
            for who in range(10)
            for _ in range(4)
        ]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / "play.jsonl").write_text(text, "utf-8")

    def act(self, folder: Path) -> int:
        out = folder / "federation"
        fixed = ("--out", out, "--silos", 2, "--rounds", _ROUNDS, "--runtime", "in-process")
        if out.exists():
            return userdp("federate", folder / "play.jsonl", *fixed, "--resume")
        return userdp(
            "federate", folder / "play.jsonl", *fixed, "--batch-size", 5, "--items-per-silo", 40,
            "--subjects-per-silo", 10, "--model", "new", "--set", "silo.local_steps=2",
            *(word for one in ("seq_len=16", "layers=1", "width=8", "heads=2")
              for word in ("--set", f"model.{one}")),
        )  # fmt: skip

    def check(self, folder: Path) -> list[str]:
        from userdp.claims import claim
        from userdp.federated.simulation import claim_of

        epsilon = claim_of(folder / "federation").guarantee.epsilon
        problems = [] if 3.9 <= epsilon <= 4 else [f"the claim is {epsilon}, and the plan's is 4"]
        # Of each silo's own people: its part of what somebody costs who is in both.
        spent = {one.name: claim(one / "store").guarantee for one in self._silos(folder)}
        problems += [f"{name} claims nothing" for name, one in spent.items() if one.epsilon <= 0]
        return problems

    def problems(self, folder: Path) -> list[str]:
        there = {path.name for path in folder.iterdir()}
        return [f"{name} was left" for name in sorted(there - {"federation", "play.jsonl"})]

    def lost(self, folder: Path) -> set[str]:
        found = set()
        for silo in self._silos(folder):
            begun, released = silo / "begun.json", silo / "released.safetensors"
            if begun.exists():
                number = json.loads(begun.read_text("utf-8"))["round"]
                if not released.exists() or round_of(released) < number:
                    found.add(f"{silo.name}/{number}")
        return found

    def _silos(self, folder: Path) -> list[Path]:
        return sorted((folder / "federation").glob("silo-*"))

    def result(self, folder: Path) -> str | None:
        return digest_of_tensors(folder / "federation" / "model.safetensors")


def round_of(weights: Path) -> int:
    """The round that a file of weights was written after."""
    data = weights.read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return int(header["__metadata__"]["rounds"])
