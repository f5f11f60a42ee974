"""Weights, the files beside them, checkpoints, and what a model says that it descends from."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from benchmarks.faults.hostile.cases import Target
from benchmarks.faults.hostile.targets.ledgers import CORPUS
from benchmarks.faults.hostile.targets.prices import remember_prices


class Lineage(Target):
    """What a folder of weights says of them, read without torch."""

    name = "weights"
    what = "safetensors, and userdp.json beside them: digests and lineage"

    def make(self, folder: Path) -> None:
        remember_prices()
        for name in ("model.safetensors", "userdp.json"):
            shutil.copyfile(CORPUS / "winner" / "model" / name, folder / name)

    def read(self, folder: Path) -> None:
        from userdp.claims.bound import content_digest
        from userdp.claims.verify import verify_model
        from userdp.claims.weights import description_of, digest_of, named_digest

        digest = digest_of(folder)
        named_digest(folder / "model.safetensors")
        content_digest(folder / "model.safetensors")
        description_of(folder)
        checked = verify_model(folder)
        known = digest_of(CORPUS / "winner" / "model")
        assert checked.problems or digest == known, "verified, and the tensors are others"


class Checkpoint(Target):
    """The state of an interrupted run."""

    name = "checkpoint"
    what = "checkpoints: tensors and numbers"

    def make(self, folder: Path) -> None:
        from userdp.training.checkpoints import Checkpoints

        Checkpoints(folder, "ab12", *_trained()).save(3)

    def read(self, folder: Path) -> None:
        from userdp.training.checkpoints import Checkpoints

        Checkpoints(folder, "ab12", *_trained()).read(most_steps=3)


class Arrays(Target):
    """Exact losses and scores in NumPy's format."""

    name = "arrays"
    what = "NumPy's arrays (.npy)"

    def make(self, folder: Path) -> None:
        import numpy as np

        np.save(folder / "losses.npy", np.arange(30.0))

    def read(self, folder: Path) -> None:
        from userdp.arrays import read_array

        values = read_array(folder / "losses.npy", what="losses")
        assert values.nbytes <= (folder / "losses.npy").stat().st_size, "more than the file holds"


TARGETS: tuple[type[Target], ...] = (Lineage, Checkpoint, Arrays)


def _trained() -> tuple[Any, Any, Any]:
    """A tiny model, its optimizer after a step, and an average."""
    import torch
    from torch import nn

    from userdp.training.averaging import WeightAverage

    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    return model, optimizer, WeightAverage(model, 0.9)
