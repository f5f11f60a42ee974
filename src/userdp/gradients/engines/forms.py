r"""Which of two forms a linear layer's per-unit gradients take: a cost model.

With U units of S positions and a parameter of p x q, beside the product that the ordinary weight
gradient costs too:

* forming them writes U p q numbers, reads them for the norms and reads them again for the sum;
* the Gram matrices cost :math:`2 U S^2 (p + q)` operations.

So forming wins while :math:`S^2 (1/p + 1/q)` is above some number of operations that the machine
does in the time of three transfers of a number: `_BALANCE`. (On a CPU measured: at 22 both cost the
same, in products of 128 positions for 768 x 32,768; at 16 Gram matrices are cheaper, at 27 formed
gradients. That was with float64 matrices; with float32 ones 44 is no better at width 1,024. On one
H200, 64 units: at 20 Gram matrices are a tenth cheaper, weighted sum included, at 32 formed
gradients; these want memory beside that, so a little more is asked of them.)
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeAlias

_BALANCE = {"cpu": 22.0, "cuda": 40.0}


class Form(StrEnum):
    """How a layer's per-unit gradients are represented."""

    FORMED = "formed"
    GHOST = "ghost"


Forms: TypeAlias = Form | Mapping[str, Form] | None
"""One form for all linear layers, one for each parameter by name, or None: chosen by cost."""


def choose_form(*, units: int, positions: int, p: int, q: int, device: str) -> Form:
    """The cheaper form for a parameter (p, q) that saw ``positions`` of ``units`` units.

    >>> choose_form(units=4, positions=2048, p=1024, q=256, device="cpu")
    <Form.FORMED: 'formed'>
    >>> choose_form(units=16, positions=2048, p=4096, q=1024, device="cpu")
    <Form.GHOST: 'ghost'>
    """
    if units == 1:
        return Form.FORMED
    per_unit = positions / units
    if per_unit**2 * (1 / p + 1 / q) < _BALANCE.get(device, _BALANCE["cuda"]):
        return Form.GHOST
    return Form.FORMED
