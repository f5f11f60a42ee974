"""Broken bounds are caught: each twin breaks one step of the certificate and misses the truth."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from userdp.accounting.contour import Phase, line, phase_of
from userdp.accounting.contour.attempts import plan_nodes
from userdp.accounting.contour.curve import delta_at, delta_bounds
from userdp.accounting.contour.line import Line, make_lines
from userdp.accounting.contour.nodes import Contour, Nodes, compute_nodes, evaluate
from userdp.accounting.contour.side import (
    Saddle,
    Side,
    Step,
    make_side,
    saddle_at_epsilon,
    split_at,
)
from userdp.accounting.laws import Binomial

pytestmark = pytest.mark.filterwarnings("error")

PHASE = phase_of(Binomial(trials=8, probability=0.01), noise_multiplier=1.0, count=2000)
EPSILON = 34.0


def make_line(step: Step) -> Line:
    return line.make_line(step, 2.0)


def make_split_line(step: Step) -> line.SplitLine:
    return line.make_split_line(step, split_at(step, 2.0, 0.8, step.x.size), 2.0)


def planned(phase: Phase, epsilon: float, mass_budget: float) -> tuple[Side, Saddle, Nodes]:
    side = make_side((phase,), remove=True, mass_budget=mass_budget)
    saddle = saddle_at_epsilon(side, epsilon)
    assert saddle is not None
    nodes = plan_nodes(side, saddle)
    assert nodes is not None
    return side, saddle, nodes


def with_step(nodes: Nodes, factor: float) -> Nodes:
    """The same nodes with the step h multiplied by ``factor``."""
    lines = make_lines(nodes.side, nodes.at.c)
    coarse = Contour(nodes.at.c, nodes.at.h * factor, math.ceil(nodes.at.n / factor))
    return compute_nodes(nodes.side, lines, coarse, nodes.bounds, nodes.log_tail, EPSILON)


@pytest.mark.pitfall(number=24)
def test_a_dropped_tail_that_is_not_added_back_is_caught() -> None:
    truth = delta_bounds((PHASE,), EPSILON, remove=True)
    side, _, nodes = planned(PHASE, EPSILON, 3e-3 * truth.lower)
    honest = delta_at(nodes, EPSILON)
    assert honest.lower <= truth.upper
    assert truth.lower <= honest.upper
    forgetful = dataclasses.replace(nodes, side=dataclasses.replace(side, dropped=0.0))
    assert delta_at(forgetful, EPSILON).upper < truth.lower


def test_a_coarse_step_widens_the_bracket_and_its_bare_sum_is_wrong() -> None:
    truth = delta_bounds((PHASE,), EPSILON, remove=True)
    _, _, nodes = planned(PHASE, EPSILON, 2e-9 * truth.lower)
    coarse = with_step(nodes, 3.0)
    piece = evaluate(coarse, EPSILON)
    bare = piece.middle * math.exp(piece.log_scale)
    assert bare > truth.upper * (1 + 1e-6)  # a sum without its excess is no lower bound
    honest = delta_at(coarse, EPSILON)
    assert honest.lower <= truth.upper
    assert truth.lower <= honest.upper


@pytest.mark.parametrize("make", [make_line, make_split_line])
def test_a_strip_that_holds_a_zero_is_rejected_on_every_kind_of_line(make: Any) -> None:
    side = make_side((PHASE,), remove=True, mass_budget=1e-15)
    # 1 - pi + pi e^{i a y} vanishes at pi = 1/2, y = pi sigma: a flat curvature hides it
    flat = dataclasses.replace(side.steps[0], curvature=np.full(side.steps[0].x.size, 1e-9))
    line = make(flat)
    honest = make(side.steps[0])
    assert line.ell.size > honest.ell.size  # a lower strip, so more points
    assert float(line.ell.imag.min()) >= 0
