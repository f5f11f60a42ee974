r"""Steps: functions that make a jump of their arguments' last bits, such as a router's choice.

In a batch, the last bits of a row's numbers hang on who else is there, by a relative
:math:`\rho` of about 1e-6, and the margin of the clip is for that (`engines.batched`). A function
that jumps turns a last bit into anything: of two experts whose logits are equal up to rounding, a
router takes one where a user shares the pass, and the other one without. Then a change of the
cohort moves somebody else's gradient by a part that no margin covers. So the result of a step of a
row's real numbers is of unknown place, and the reference engine computes, whose units are alone.

Two kinds of steps are told apart from all else:

* a result that is not of real numbers, made of a row's real numbers: indices of `topk`, `sort` or
  `argmax`, a comparison, a cast to integers. (Their *values* do not jump.)
* functions of real numbers that jump: rounding, signs, remainders.

Steps of integers, as tokens and lengths are, are exact, and so are those of constants. Slopes that
jump, as that of a ReLU does, are not steps: a last bit changes one number's part of the gradient,
of which there are as many as activations, and what they add up to was measured (`docs/engines.md`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from userdp.gradients.certificate.places.place import Call, named, tensors_in

JUMPS = frozenset(
    named(
        "round floor ceil trunc fix frac sign sgn floor_divide remainder fmod heaviside threshold "
        "hardshrink round_ floor_ ceil_ trunc_ fix_ frac_ sign_ sgn_ floor_divide_ remainder_ "
        "fmod_ threshold_ __floordiv__ __mod__ __rfloordiv__ __rmod__ __ifloordiv__ __imod__ "
        "copysign copysign_ nextafter quantize_per_tensor fake_quantize_per_tensor_affine"
    )
)
"""Functions from real numbers to real numbers that are not continuous."""


def jumps(function: Callable[..., Any], result: Tensor) -> bool:
    """Whether ``result`` of ``function`` would be a step of real numbers, if it is made of some."""
    if result.is_floating_point():
        return function in JUMPS
    return not result.is_complex()


def steps(function: Callable[..., Any], call: Call, result: Tensor) -> bool:
    """Whether ``result`` is a step of some row's real numbers.

    Args:
        function: of torch.
        call: its arguments, and their places.
        result: a tensor that it returned.
    """
    if not jumps(function, result):
        return False
    places = [
        call.place(tensor)
        for tensor in tensors_in(call.values)
        if tensor.is_floating_point() or tensor.is_complex()
    ]
    return any(place is None or not place.constant for place in places)
