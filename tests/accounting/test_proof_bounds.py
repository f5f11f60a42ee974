"""What the proof bounds without summing it, held against the integrand itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

flint = pytest.importorskip("flint", reason="the extra `proof` is not installed")

from userdp.accounting.laws import Binomial  # noqa: E402
from userdp.accounting.proof import Steps, enclose_delta, sums  # noqa: E402
from userdp.accounting.proof.balls import Ball  # noqa: E402
from userdp.accounting.proof.cells import Cells  # noqa: E402
from userdp.accounting.proof.cut import cut_weight  # noqa: E402
from userdp.accounting.proof.law import Ratio  # noqa: E402
from userdp.accounting.proof.planning import Cut, make_plan  # noqa: E402

ONE = Steps(law=Binomial(trials=8, probability=0.3), scale=1.0, noise_multiplier=0.6, count=50)
FAR = Steps(law=Binomial(trials=60, probability=0.5), scale=1.0, noise_multiplier=1.0, count=1)


@pytest.fixture(autouse=True)
def precise() -> Iterator[None]:
    with flint.ctx.workprec(128):
        yield


def cells_of(steps: Steps, *, remove: bool) -> Cells:
    plan = make_plan((steps,), 60.0, remove=remove, log_tolerance=math.log(1e-11))
    b = flint.arb(1 + plan.right) if remove else -flint.arb(plan.right)
    target = float(plan.views[0].log_moments(np.array([float(b)]))[0]) + math.log(1e-20)
    return Cells(steps, plan.views[0], b, target, real=True)


def log_integrand(cells: Cells) -> Callable[[float], float]:
    """log of φ (1 - χ) Z^b, the product that a moment integrates."""
    ratio = Ratio(cells._steps, (cells._steps.law.least, cells._steps.law.most), (-60.0, 60.0))
    root = (2 * flint.arb.pi()).sqrt()

    def at(x: float) -> float:
        ball: Ball = (cells._b * ratio.at(x)[0] - flint.arb(x) ** 2 / 2).exp() / root
        return float((ball * cut_weight(cells._view.cut, flint.arb(x))).log())

    return at


@pytest.mark.parametrize("remove", [True, False], ids=["remove", "add"])
def test_on_each_cell_the_integrand_is_below_the_cells_top(remove: bool) -> None:
    cells = cells_of(ONE, remove=remove)
    integrand, checked = log_integrand(cells), 0
    x = cells.inner[0] - sum(float(c[1]) for c in cells._cells[: int(cells.inside.argmax())])
    for top, length, _, inside in cells._cells:
        if inside:
            places = x + float(length) * np.linspace(0.0, 1.0, 5)
            assert max(map(integrand, places)) <= float(top.log()) + 1e-12
            checked += 1
        x += float(length)
    assert checked > 100


def test_beyond_the_right_end_the_integral_is_below_its_bound_or_none_is_given() -> None:
    """Where the cut is blunt, the integrand rises once more beyond it, and has no bound there."""
    cells = cells_of(FAR, remove=True)
    cells._b = flint.arb(1.1)
    cells._view = replace(cells._view, cut=Cut(place=20.0, sharpness=0.3))
    integrand, root = log_integrand(cells), (2 * flint.arb.pi()).sqrt()
    ratio = Ratio(FAR, (0, 60), (-60.0, 60.0))
    given = refused = 0
    for end in 20.0 + np.array([1.0, 3.0, 4.0, 8.0, 20.0, 27.0, 30.0]):
        try:
            bound, most, _ = cells._right_bound(end, ratio.at(end), root)
        except ArithmeticError:
            refused += 1
            continue
        given += 1
        mesh = 0.05
        logs = np.array([integrand(x) for x in end + mesh * (0.5 + np.arange(500))])
        whole = float(np.logaddexp.reduce(logs)) + math.log(mesh)
        assert whole <= float(bound.log())
        assert integrand(end) <= float(most.log())
    assert min(given, refused) > 0


def test_a_left_end_on_the_wrong_side_has_no_bound() -> None:
    cells, end = cells_of(ONE, remove=False), 5.0
    ratio = Ratio(ONE, (0, 8), (-60.0, 60.0))
    root = (2 * flint.arb.pi()).sqrt()
    with pytest.raises(ArithmeticError, match="left end"):
        cells._left_bound(end, ratio.at(end), root)
    bound, most, _ = cells._left_bound(-9.0, ratio.at(-9.0), root)
    assert bound > 0
    assert log_integrand(cells)(-9.0) <= float(most.log()) + 1e-12


def test_a_sum_that_no_smoothing_shortens_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    one = replace(ONE, law=Binomial(trials=1, probability=0.1), count=2)
    tried: list[float] = []

    def endless(self: object, smoothing: float) -> float:
        tried.append(smoothing)
        assert smoothing < 1e9, "no end to the smoothing"
        return math.inf

    monkeypatch.setattr(sums._Sum, "_terms", endless)
    found = enclose_delta((one,), 1.0)
    assert "too long" in found.why
    assert 0 <= found.lower <= found.upper <= 1
    assert max(tried) > 0, "some smoothing was tried"
