"""Invariant 3: the engine's norms and sum are those of plain autograd, parameter by parameter.

A norm that under-counts lets a unit through that should be clipped; a layer whose gradient is left
out of the sum, or left unscaled, is a sum that nobody asked for.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from userdp.gradients.certificate.coupling import evaluating
from userdp.training.checks.check import Check, Measured
from userdp.training.checks.oracle import gradient_of
from userdp.training.checks.subject import Subject

_AIMED = 1e-3
"""Batches aim so far below C (`userdp.gradients.precision`), the reference at nearly C."""


def _measure(subject: Subject) -> Iterator[Measured]:
    bound, squares, norms = subject.biting, subject.squares, subject.norms
    if bound is None or squares is None or norms is None:
        return
    with evaluating(subject.model):
        total = subject.sum_of(subject.units, bound)
        for unit, norm in enumerate(norms):
            apart = abs(float(total.norms[unit]) - norm)
            yield Measured(
                what=f"how far the norm of made-up unit {unit} is from plain autograd's, relative",
                value=apart / norm if norm > 1e-6 else apart,
                bound=subject.close,
            )
        sizes = {name: p.numel() for name, p in subject.parameters.items()}
        apart_by_name = total.value  # in place: large models have no room for another
        scale = dict.fromkeys(sizes, 0.0)
        for unit, by_name in enumerate(squares):
            wide = {n: torch.tensor(v, dtype=torch.float64) for n, v in by_name.items()}
            factors = subject.rule.factors(wide, sizes, l2_clip_norm=bound)
            gradient = gradient_of(subject, subject.units.select(unit, unit + 1))
            for name, part in gradient.items():
                factor = float(factors[name])
                apart_by_name[name].add_(part, alpha=-factor)
                scale[name] += factor * by_name[name] ** 0.5
        for name, square in subject.squared(apart_by_name).items():
            yield Measured(
                what=f"how far the clipped sum for {name} is from that of plain autograd, relative",
                # What is left of a parameter without a gradient is rounding of the whole.
                value=square**0.5 / (scale[name] + 1e-6 * bound),
                bound=subject.close + _AIMED,
            )


CHECK = Check(
    name="engine",
    invariant=3,
    claim="the engine's norms and clipped sum are those of plain autograd",
    measure=_measure,
    by_engine=True,
)
