r"""Which precisions a model computes in: seen, not believed.

Autocast may be entered by the loss, around the model, or inside any of its modules, and a module
may cast by hand: that is the user's choice. Around norms, clip factors and sums it breaks the clip
(one unit moved a sum by 1.78 C), and is refused: `require_no_autocast`. `dtypes_of` looks at every
operation of a forward pass over made-up rows, once for each model and loss. It is a property of the
code, so the clip may depend on it.

**Fewer bits than float32: only where a unit's bits are its own.** Two ways to compute the same
gradient in bfloat16 differ by a relative rho of 1e-3 to 1e-2. If who else is there decided which it
is, each of M others would change by that when one unit leaves, and in one direction if they are
alike: 199 units of six different rows differed by 0.27 C between a batch and one at a time. No
margin covers that. So passes have fixed shapes, only places of equal bits are used
(`engines.certify`), and which way computes a unit is a matter of that unit and of shapes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from userdp.core.errors import UseError
from userdp.gradients.certificate.made_up import CANNOT_RUN, RAGGED, Answers, failed, made_up
from userdp.gradients.certificate.state import State
from userdp.gradients.losses import Loss, row_losses
from userdp.gradients.model_randomness import known_randomness
from userdp.gradients.modes import eagerly

_EXACT = {"none", "ieee"}
"""What torch calls products of float32 matrices that keep all their bits."""

_seen: Answers[frozenset[torch.dtype]] = Answers()


def is_narrow(dtype: torch.dtype) -> bool:
    """Whether numbers of this type have fewer bits than float32's.

    >>> is_narrow(torch.bfloat16), is_narrow(torch.float16), is_narrow(torch.float32)
    (True, True, False)
    """
    return dtype.is_floating_point and dtype.itemsize < 4


def margin(dtypes: Iterable[torch.dtype]) -> float:
    """How far below C, relatively, batches aim; public. `engines.batched` says what it covers.

    It depends on dtypes alone: a margin that followed the number of units would itself move every
    contribution when one unit leaves. Norms and sums are float32 where the model is narrower.

    >>> margin([torch.float32]), margin([torch.float32, torch.bfloat16])
    (0.001, 0.001)
    """
    return 1e-5 if set(dtypes) == {torch.float64} else 1e-3


def reduced_products() -> bool:
    """Whether products of float32 matrices are computed in fewer bits (TF32, bfloat16)."""
    backends: Any = torch.backends  # torch types part of it
    places = (backends, backends.cuda.matmul, backends.mkldnn.matmul)
    return not {place.fp32_precision for place in places} <= _EXACT


def require_no_autocast(device: torch.device) -> None:
    """Refuse to compute under autocast what the clip is made of.

    Raises:
        UseError: autocast is on, for ``device`` or for the CPU, where some numbers are added up.
    """
    if torch.is_autocast_enabled(device.type) or torch.is_autocast_enabled("cpu"):
        raise UseError(
            "torch.autocast is on around a private gradient: each user's norm and the clipped sum "
            "would be computed in fewer bits too, and one user would count for more than the clip "
            "norm",
            hint="enter autocast in the loss, around the call of the model alone, or give "
            "precision='bfloat16' to TrainConfig",
        )


def dtypes_of(model: nn.Module, loss: Loss, *, masked: bool) -> frozenset[torch.dtype]:
    """The precisions of parameters (frozen ones too), and narrow ones that a pass is seen to use.

    Looked up once for each model and loss, on made-up rows; where those cannot be run, only the
    parameters' are known. Reduced products of float32 count as bfloat16's.

    Args:
        model: to be trained.
        loss: per-row loss.
        masked: whether it is told which tokens count.
    """
    known = _seen.of(model, loss)
    if not known:
        known[None] = _observed(model, loss, masked=masked)
    # Integers, as of quantized frozen layers, are exact.
    used = known[None] | {p.dtype for p in model.parameters() if p.is_floating_point()}
    return used | {torch.bfloat16} if reduced_products() else used


def _observed(model: nn.Module, loss: Loss, *, masked: bool) -> frozenset[torch.dtype]:
    device = next(model.parameters()).device
    units, state = made_up(model, RAGGED[0], masked=masked, device=device), State(model, loss)
    observed = _Operations()
    # Without a graph: gradients arrive in the dtypes of what they are gradients of.
    try:
        with known_randomness("made-up rows"), torch.no_grad(), eagerly(), observed:
            row_losses(loss, model, units.input_ids, units.lengths, units.targets)
    except CANNOT_RUN as error:
        failed(error)
    finally:
        state.put_back()
    return frozenset(observed.narrow)


class _Operations(TorchDispatchMode):
    """Within, notes the narrow types of every operation, those inside torch's functions too."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.narrow: set[torch.dtype] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        answer = func(*args, **kwargs or {})
        for value in tree_leaves((args, answer)):
            if isinstance(value, Tensor) and is_narrow(value.dtype):
                self.narrow.add(value.dtype)
        return answer
