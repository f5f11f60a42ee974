"""Norms that multiply by a vector: torch's RMS norm, and those written in Python (`LlamaRMSNorm`).

They see the vector once per row instead, so that its gradient arrives per row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from userdp.gradients.certificate.places import FIRST
from userdp.gradients.engines.layer import (
    RUN,
    Watcher,
    by_row,
    placed,
    replaces,
    stands_in_for,
)
from userdp.gradients.engines.rules.broadcast import Spread
from userdp.gradients.modes import unwatched


@stands_in_for(F.rms_norm)
def _rms_norm(
    tape: Watcher,
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor | None:
    name = tape.name_of(weight)
    if name is None or weight is None or len(normalized_shape) != 1 or not by_row(tape, x):
        return None
    vectors = RUN(tape.anchor, Spread(tape, name, FIRST, x.dim()), weight.detach())
    return placed(tape, x, F.rms_norm(x, normalized_shape, None, eps) * vectors)


def _may_be_python(kind: type[nn.Module]) -> bool:
    ours = issubclass(kind, nn.LayerNorm | nn.RMSNorm | nn.GroupNorm)
    return kind.__name__.endswith("Norm") and not ours


@replaces(_may_be_python)
def _norm_in_python(module: nn.Module, tape: Watcher) -> Callable[..., Any] | None:
    """For a norm that multiplies its input by its own vectors, in Python."""
    own = dict(module.named_parameters(recurse=False))
    vectors = all(p.dim() == 1 for p in own.values()) and not list(module.children())
    if not vectors or not any(map(tape.name_of, own.values())):
        return None
    original = module.forward

    def forward(hidden: Tensor, *args: Any, **kwargs: Any) -> Any:
        # Asked anew: a sharded layer's parameters are other tensors while it is gathered.
        own = dict(module.named_parameters(recurse=False))
        fits = torch.is_grad_enabled() and by_row(tape, hidden)
        if not fits or any(p.shape[0] != hidden.shape[-1] for p in own.values()):
            return original(hidden, *args, **kwargs)
        try:
            with unwatched():
                for name, parameter in own.items():
                    known = tape.name_of(parameter)
                    if known is not None:
                        layer = Spread(tape, known, FIRST, hidden.dim())
                        vectors = RUN(tape.anchor, layer, parameter.detach())
                        module.__dict__[name] = tape.mark(vectors, FIRST)
            return original(hidden, *args, **kwargs)
        finally:
            for name in own:
                module.__dict__.pop(name, None)

    return forward
