"""Broken bounds are caught: each twin breaks one step of the certificate and misses the truth."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from userdp.accounting.contour import line, pair_of
from userdp.accounting.contour.attempts import plan_nodes
from userdp.accounting.contour.curve import delta_at, delta_bounds
from userdp.accounting.contour.line import Line
from userdp.accounting.contour.nodes import Contour, Nodes, compute_nodes, evaluate
from userdp.accounting.contour.side import Side, make_side, saddle_at_epsilon, split_at
from userdp.accounting.laws import Binomial

pytestmark = pytest.mark.filterwarnings("error")

PAIR = pair_of(Binomial(trials=8, probability=0.01), noise_multiplier=1.0, steps=2000)
EPSILON = 34.0


def make_line(side: Side) -> Line:
    return line.make_line(side, 2.0)


def make_split_line(side: Side) -> line.SplitLine:
    return line.make_split_line(side, split_at(side, 2.0, 0.8, side.x.size), 2.0)


def planned(mass_budget: float) -> Nodes:
    side = make_side(PAIR, remove=True, mass_budget=mass_budget)
    saddle = saddle_at_epsilon(side, EPSILON)
    assert saddle is not None
    nodes = plan_nodes(side, saddle)
    assert nodes is not None
    return nodes


def with_step(nodes: Nodes, factor: float) -> Nodes:
    """The same nodes with the step h multiplied by ``factor``."""
    again = line.make_line(nodes.side, nodes.side.b(nodes.at.c))
    coarse = Contour(nodes.at.c, nodes.at.h * factor, math.ceil(nodes.at.n / factor))
    return compute_nodes(nodes.side, again, coarse, nodes.bounds, nodes.log_tail, EPSILON)


@pytest.mark.pitfall(number=24)
def test_a_dropped_tail_that_is_not_added_back_is_caught() -> None:
    truth = delta_bounds(PAIR, EPSILON, remove=True)
    nodes = planned(3e-3 * truth.lower)
    honest = delta_at(nodes, EPSILON)
    assert honest.lower <= truth.upper
    assert truth.lower <= honest.upper
    forgetful = dataclasses.replace(nodes, side=dataclasses.replace(nodes.side, dropped=0.0))
    assert delta_at(forgetful, EPSILON).upper < truth.lower


def test_a_coarse_step_widens_the_bracket_and_its_bare_sum_is_wrong() -> None:
    truth = delta_bounds(PAIR, EPSILON, remove=True)
    nodes = planned(2e-9 * truth.lower)
    coarse = with_step(nodes, 3.0)
    piece = evaluate(coarse, EPSILON)
    bare = piece.middle * math.exp(piece.log_scale)
    assert bare > truth.upper * (1 + 1e-6)  # a sum without its excess is no lower bound
    honest = delta_at(coarse, EPSILON)
    assert honest.lower <= truth.upper
    assert truth.lower <= honest.upper


@pytest.mark.parametrize("make", [make_line, make_split_line])
def test_a_strip_that_holds_a_zero_is_rejected_on_every_kind_of_line(make: Any) -> None:
    side = make_side(PAIR, remove=True, mass_budget=1e-15)
    # 1 - pi + pi e^{i a y} vanishes at pi = 1/2, y = pi sigma: a flat curvature hides it
    flat = dataclasses.replace(side, curvature=np.full(side.x.size, 1e-9))
    line = make(flat)
    honest = make(side)
    assert line.ell.size > honest.ell.size  # a lower strip, so more points
    assert float(line.ell.imag.min()) >= 0
