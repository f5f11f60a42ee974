"""What a run notes of the model that it began from: by its weights and its shape, not by a name.

A folder ``models/gpt2`` may hold anything. What a reviewer can check is the digest of the weights,
and the architecture that was built, whatever options said. Both are public constants: no record
has a part in them.
"""

from __future__ import annotations

from pathlib import Path, PurePath
from typing import Any

from torch import nn

from userdp.training.models import BUNDLED, NEW

_SHAPE = {
    "layers": "num_hidden_layers",
    "width": "hidden_size",
    "heads": "num_attention_heads",
    "vocabulary": "vocab_size",
}
"""Our names, and those by which every configuration of `transformers` can be asked."""


def base_facts(
    model: nn.Module, *, weights: str | None, loaded_from: str | None = None
) -> dict[str, Any]:
    """Plain values for the ledger's first line.

    Args:
        model: at the weights that training begins with, before adapters are added if userdp adds
            them.
        weights: their digest, if it is known; left out of new weights, which follow a seed.
        loaded_from: where userdp itself just read them; None of a model that a caller brought,
            which says of itself where it is from.

    Returns:
        ``origin`` ("bundled", "new", "folder", "hub" or "memory"); ``name``, of a folder without
        its place; ``weights``; ``kind`` of the architecture, ``layers``, ``width``, ``heads`` and
        ``vocabulary`` as far as its configuration tells; ``parameters``.
    """
    noted = str(getattr(model, "name_or_path", "") or "")
    origin, name = "memory", loaded_from or noted
    if loaded_from is not None:
        origin = loaded_from if loaded_from in (BUNDLED, NEW) else _place(loaded_from)
    # Names on the hub have one slash at most; anything else may be a place on this machine.
    place = Path(name).is_absolute() or Path(name).is_dir() or name.count("/") > 1
    local = origin == "folder" or place
    facts: dict[str, Any] = {
        "origin": origin,
        "name": None if origin in (BUNDLED, NEW) else PurePath(name).name if local else name,
        "weights": None if origin == NEW else weights,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "kind": type(model).__name__,
    }
    config = getattr(model, "config", None)
    if config is not None:
        facts["kind"] = getattr(config, "model_type", None) or facts["kind"]
        facts |= {ours: getattr(config, theirs, None) for ours, theirs in _SHAPE.items()}
    return {key: value for key, value in facts.items() if isinstance(value, str | int) and value}


def _place(name: str) -> str:
    return "folder" if Path(name).is_dir() else "hub"
