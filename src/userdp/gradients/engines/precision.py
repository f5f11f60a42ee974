r"""Which precisions a model computes in: seen, not believed.

Autocast may be entered by the loss, around the model, or inside any of its modules, and a module
may cast by hand. (Around a whole sum it is refused: `userdp.gradients.ambient`.) All of that shows
in the dtypes of the tensors that torch's functions are given and return:

* `dtypes_of` looks at every operation of a forward and backward pass over made-up rows, once for
  each model and loss. It is a property of the code, so the clip may depend on it (`aim`).
* `Watch` looks at each torch function of a pass that is followed; a certified pass has the types of
  all that its calls are given (`certificate.calls`).

**Fewer bits than float32: only where a unit's bits are its own.** Two ways to compute the same
gradient in bfloat16 differ by a relative rho of 1e-3 to 1e-2. If who else is there decided which it
is, each of M others would change by that when one unit leaves, and in one direction if they are
alike: 199 units of six different rows differed by 0.27 C between a batch and one at a time. No
margin covers that. So passes have fixed shapes, only places of equal bits are used
(`engines.certify`), and which way computes a unit is a matter of that unit and of shapes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from userdp.gradients.ambient import precisions_of_products
from userdp.gradients.certificate.made_up import CANNOT_RUN, RAGGED, Answers, made_up
from userdp.gradients.losses import Loss, row_losses
from userdp.gradients.models import require_uncoupled
from userdp.gradients.modes import DispatchMode, FunctionMode, eagerly
from userdp.gradients.units import Units
from userdp.out_of_memory import ran_out_of_memory

if TYPE_CHECKING:
    from userdp.gradients.engines.engine import Task

_EXACT = {"none", "ieee"}
"""What torch calls products of float32 matrices that keep all their bits."""

_MARGINS = {torch.float64: 1e-5, torch.float32: 1e-3}
"""How far below C, relatively, batches aim; public. `engines.batched` says what they cover."""

_LEAST_AIM = 1e-30
"""At the very end of the range of clip norms the reference's own margin alone is left."""

_seen: Answers[frozenset[torch.dtype]] = Answers()


def is_narrow(dtype: torch.dtype) -> bool:
    """Whether numbers of this type have fewer bits than float32's.

    >>> is_narrow(torch.bfloat16), is_narrow(torch.float16), is_narrow(torch.float32)
    (True, True, False)
    """
    if dtype.is_complex:
        return dtype.itemsize < 8
    return dtype.is_floating_point and dtype.itemsize < 4


_NARROW = frozenset(
    value for value in vars(torch).values() if isinstance(value, torch.dtype) and is_narrow(value)
)
_SEVERAL = (tuple, list)


def margin(dtypes: Iterable[torch.dtype]) -> float:
    """The margin of batches where the model computes in these dtypes; see `engines.batched`.

    It depends on dtypes alone: a margin that followed the number of units would itself move every
    contribution when one unit leaves. Norms and sums are float32 where the model is narrower.

    >>> margin([torch.float32]), margin([torch.float32, torch.bfloat16])
    (0.001, 0.001)
    """
    return max(_MARGINS.get(dtype, _MARGINS[torch.float32]) for dtype in set(dtypes))


def aim(task: Task) -> float:
    """The norm to clip at: the task's less the margin of the precisions in use.

    Those are properties of the code, whatever the units hold: `dtypes_of`.
    """
    return max(_LEAST_AIM, task.l2_clip_norm * (1 - margin(task.dtypes)))


def reduced_products() -> bool:
    """Whether products of float32 matrices are computed in fewer bits (TF32, bfloat16)."""
    return not set(precisions_of_products()) <= _EXACT


def dtypes_of(model: nn.Module, loss: Loss, like: Units) -> frozenset[torch.dtype]:
    """The precisions of parameters (frozen ones too), and narrow ones that a pass is seen to use.

    Looked up once for each model and loss, on made-up rows; where those cannot be run, only the
    parameters' are known, and `Watch` sees the rest. Reduced products of float32 count as
    bfloat16's.

    Args:
        model: to be trained.
        loss: per-row loss.
        like: decides whether tokens are marked, and the device; nothing of its rows is read.
    """
    known = _seen.of(model, loss)
    if not known:
        known[None] = _observed(model, loss, like)
    # Integers, as of quantized frozen layers, are exact.
    used = known[None] | {p.dtype for p in model.parameters() if p.is_floating_point()}
    return used | {torch.bfloat16} if reduced_products() else used


def _observed(model: nn.Module, loss: Loss, like: Units) -> frozenset[torch.dtype]:
    require_uncoupled(model)  # a pass of such a model may write to its weights
    masked, device = like.targets is not None, like.lengths.device
    units = made_up(model, RAGGED[0], masked=masked, device=device)
    observed = _Operations()
    # Without a graph: gradients arrive in the dtypes of what they are gradients of.
    try:
        with torch.no_grad(), eagerly(), observed:
            row_losses(loss, model, units.input_ids, units.lengths, units.targets)
    except CANNOT_RUN as error:
        if ran_out_of_memory(error):
            raise
    return frozenset(observed.narrow)


class Watch(FunctionMode):
    """Within, notes the narrow types that torch functions are given or return, or autocast to.

    Args:
        device: its autocast is looked at, by type ("cpu").

    Attributes:
        narrow: what was seen.
    """

    def __init__(self, device: str) -> None:
        super().__init__()
        self._device = device
        self.narrow: set[torch.dtype] = set()

    def note(self, *values: Any) -> None:
        """Look at tensors, and at those in tuples."""
        for value in values:
            if isinstance(value, Tensor):
                if value.dtype in _NARROW:
                    self.narrow.add(value.dtype)
            elif isinstance(value, _SEVERAL):
                self.note(*value)

    def ran(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        answer = func(*args, **kwargs)
        self.look(args, answer)
        return answer

    def look(self, args: Any, answer: Any) -> None:
        """Note the types of a call's arguments and answer, and that of an autocast around it."""
        self.note(answer, *args)
        if torch.is_autocast_enabled(self._device):
            self.narrow.add(torch.get_autocast_dtype(self._device))


class _Operations(DispatchMode):
    """Within, notes the narrow types of every operation, those inside torch's functions too."""

    def __init__(self) -> None:
        super().__init__()
        self.narrow: set[torch.dtype] = set()

    def ran(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        answer = func(*args, **kwargs)
        for value in tree_leaves((args, answer)):
            if isinstance(value, Tensor) and is_narrow(value.dtype):
                self.narrow.add(value.dtype)
        return answer
