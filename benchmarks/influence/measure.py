"""One case under one engine: how far the sum moves."""

from __future__ import annotations

import math
from typing import Any

from torch import nn

from benchmarks.counted import counted_reference
from benchmarks.influence.cases import Case, without
from userdp.errors import UseError
from userdp.gradients import Engine, clipped_sum, trainable_parameters
from userdp.gradients.clipping import squared_norm
from userdp.gradients.shards import is_sharded

_met: set[tuple[Engine, nn.Module]] = set()


def influence(engine: Engine, case: Case) -> dict[str, Any]:
    """``ratio`` and ``fell_back``, whether the reference engine computed; or ``refused``.

    A case that is refused is refused before any sum: see `userdp.gradients.certificate.coupling`.
    """
    row: dict[str, Any] = {"case": case.name, "share": case.share, "units": len(case.units)}
    try:
        clip = _clip(case)
        if (engine, case.model) not in _met:
            _met.add((engine, case.model))
            engine(case.model, case.loss, case.before, l2_clip_norm=clip)
        everybody = engine(case.model, case.loss, case.units, l2_clip_norm=clip)
        rest = without(case.units, case.left_out)
        # The engine has asked by now what it asks of a model once.
        with counted_reference() as calls:
            others = engine(case.model, case.loss, rest, l2_clip_norm=clip)
    except UseError as error:
        return {**row, "refused": str(error).split(",")[0][:60]}
    moved = (everybody.value[name] - value for name, value in others.value.items())
    return {
        **row,
        "ratio": math.sqrt(squared_norm(moved)) / clip,
        "clipped": float((everybody.norms > clip).double().mean()),
        "fell_back": bool(calls) and engine is not clipped_sum,
    }


def _clip(case: Case) -> float:
    """A share of the median norm, so that the clip bites some, all or none of the units."""
    if any(is_sharded(p) for p in trainable_parameters(case.model).values()):
        return case.share  # its gradients are never formed for one unit
    norms = clipped_sum(case.model, case.loss, case.units, l2_clip_norm=1e6).norms
    return case.share * max(float(norms.median()), 1e-3)
