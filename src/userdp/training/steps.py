"""What one step of a run hands to the loop, and what the operator may know of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from userdp.errors import UseError
from userdp.gradients import ClippedSum, trainable_parameters
from userdp.gradients.shards import like

_QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One step whose gradients now stand in ``.grad``.

    Args:
        number: of this step, from 1; in a private run the attempts charged so far.
        operator: exact numbers about private data, for operator.jsonl and nothing else; of a run
            that keeps none empty, see `make_private`.
    """

    number: int
    operator: dict[str, Any]


class NoExactLog(dict[str, Any]):
    """The exact numbers of a run that keeps none: empty, and each says by its name why."""

    def __missing__(self, name: str) -> Any:
        raise UseError(
            f"this run keeps no exact numbers, so that step.operator has no {name!r}: a loop that "
            "follows one (a learning rate by the loss, the best weights by it) tells something of "
            "the people that no epsilon covers",
            hint="follow step.number, the noisy gradient, or data that is nobody's private text; "
            "PrivateOptions(exact_log=True) shows them, and makes the claim conditional",
        )


def operator_facts(
    summed: ClippedSum, *, rows: int, l2_clip_norm: float, seconds: float
) -> dict[str, Any]:
    """What the operator may know of a private step: exact, and not covered by any ε."""
    units = len(summed.norms)
    finite = summed.norms[summed.norms.isfinite()]
    losses = summed.losses[summed.losses.isfinite()]
    quantiles = (
        torch.quantile(finite, torch.tensor(_QUANTILES, dtype=finite.dtype)).tolist()
        if len(finite)
        else []
    )
    return {
        "units": units,
        "rows": rows,
        "loss": float(losses.mean()) if len(losses) else None,
        "norm_quantiles": dict(zip(map(str, _QUANTILES), quantiles, strict=False)),
        "clipped_fraction": float((finite > l2_clip_norm).double().mean()) if len(finite) else None,
        "non_finite": summed.non_finite,
        "failed": summed.failed,
        "halvings": summed.halvings,
        "seconds": round(seconds, 4),
    }


def set_gradients(model: nn.Module, value: Mapping[str, Tensor], *, denominator: float) -> None:
    """Put ``value / denominator`` into each trainable parameter's ``.grad``, in its dtype.

    Args:
        model: whose gradients are set.
        value: the noisy sum by parameter name.
        denominator: a public constant (invariant 4).
    """
    for name, parameter in trainable_parameters(model).items():
        parameter.grad = like(parameter, (value[name] / denominator).to(parameter.dtype))
