"""What is set around a clipped sum and would reach its norms and sums: above all, autocast.

Under `torch.autocast` products of float32 matrices are computed in bfloat16 or float16. Around the
model that is the user's choice of precision; around norms, clip factors and sums it breaks the
clip: one unit then moved a sum by 1.78 C. So it is entered by the model or the loss, and left by
them again.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import torch

from userdp.errors import UseError

Autocast: TypeAlias = tuple[tuple[str, torch.dtype], ...]
"""The types of devices for which autocast is on, each with what it casts to."""


def autocast_now(device: torch.device) -> Autocast:
    """What is on for ``device``, and for the CPU, where some numbers are added up."""
    return tuple(
        (kind, torch.get_autocast_dtype(kind))
        for kind in sorted({device.type, "cpu"})
        if torch.is_autocast_enabled(kind)
    )


def precisions_of_products() -> tuple[str, ...]:
    """What torch may compute products of float32 matrices in, on its several backends."""
    backends: Any = torch.backends  # torch types part of it
    return (
        backends.fp32_precision,
        backends.cuda.matmul.fp32_precision,
        backends.mkldnn.matmul.fp32_precision,
    )


def require_no_autocast(device: torch.device) -> None:
    """Refuse to compute under autocast what the clip is made of.

    Raises:
        UseError: autocast is on, for ``device`` or the CPU.
    """
    if autocast_now(device):
        raise UseError(
            "torch.autocast is on around a private gradient: each user's norm and the clipped sum "
            "would be computed in fewer bits too, and one user would count for more than the clip "
            "norm",
            hint="enter autocast in the loss, around the call of the model alone, or give "
            "precision='bfloat16' to TrainConfig",
        )


def require_left(before: Autocast, device: torch.device) -> None:
    """Refuse a model or a loss that leaves autocast other than it found it.

    Raises:
        UseError: it was ``before`` that, and is something else now.
    """
    if autocast_now(device) != before:
        raise UseError(
            "the model or the loss turned torch.autocast on or off and left it so: norms and the "
            "clipped sum would be computed in fewer bits too, and one user would count for more "
            "than the clip norm",
            hint="enter it as a context: `with torch.autocast(...):`",
        )
