"""The cut of the numerator: the weight 1 - χ, and an upper bound of what it takes away."""

from __future__ import annotations

import numpy as np

from userdp.accounting.proof.balls import Ball, flint_library
from userdp.accounting.proof.law import Steps, expectation
from userdp.accounting.proof.planning import Cut, View


def cut_weight(cut: Cut | None, z: Ball) -> Ball:
    """1 - χ(z) = ½ erfc(κ(z - place)); 1 without a cut."""
    flint = flint_library()
    if cut is None:
        return flint.arb(1)
    return (flint.arb(cut.sharpness) * (z - flint.arb(cut.place))).erfc() / 2


def dropped_mass(steps: Steps, view: View, bits: int) -> Ball:
    """An upper bound of ∫ χ dQ = Σ q_k Pr[N(a_k, 1 + 1/(2κ²)) ≥ place], one step's cut mass."""
    flint = flint_library()
    arb, cut = flint.arb, view.cut
    if cut is None:
        return arb(0)
    with flint.ctx.workprec(bits):
        keep = np.flatnonzero(view.law.log_q > view.law.log_q.max() - 1500.0)
        window = (int(keep[0]) + steps.law.least, int(keep[-1]) + steps.law.least)
        width = (2 + 1 / arb(cut.sharpness) ** 2).sqrt()

        def beyond(k: int) -> Ball:
            return ((arb(cut.place) - steps.unit * k) / width).erfc() / 2

        return expectation(steps.law, window, beyond).upper()
