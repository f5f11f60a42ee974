"""Scan random lines of the contour accountant for losses on a wrong branch.

    python -m benchmarks.accounting lines [--lines N] [--seed S] [--results FILE.jsonl] [--json]

A line is a law of the random shift (Poisson or fixed batch), a height y, and 24 values of x where
y^2 l''(x) < 1.95, the condition under which the accountant uses l(x + iy). The laws lie in the
corners: p from 1e-7 to 1 - 1e-7, σ from 0.2 to 1e3, up to 3e4 components. A third of the x are
aimed at |l(x)| < 0.3, and a third at points there where e^{l(x+iy)} comes back to 1 after a whole
turn.

The reference is unwrapped: l is followed from the real axis along y in steps of which each turns
the sum by less than π/4 (more steps are taken until that holds), then evaluated with 64-bit
mantissas (``numpy.longdouble``). It uses neither equation 9 of docs/accounting.md nor any of the
accountant's code. A difference above π is a lost branch; one above 1e-10 (1 + |l|) is an error too.

The same lines are given to the principal logarithm, which the accountant used near e^l = 1 before:
the number of lines on which it is wrong is the scan's own check that it looks in the right places.

Chunks of 200 lines are seeded one by one and appended to ``--results`` as they come; a chunk that
is there already is not computed again.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from userdp.accounting.contour.privacy_loss import Pair, ShiftLaw, losses, pair_of
from userdp.accounting.item_count_laws import Binomial, Hypergeometric

Floats = NDArray[np.float64]
Complexes = NDArray[np.complex128]

CHUNK = 200
_LINES_PER_LAW = 5
_POINTS = 8  # of each of the three kinds
_DEEP = 60.0  # terms below e^-60 of the largest are left out of the reference
_LARGEST_BEND = 1.95  # of y^2 l''
_FARTHEST = (
    18_000.0  # largest shift: 60,000 points of 0.3, the most that the accountant's grid holds
)


@dataclass(frozen=True)
class Count:
    """What a chunk of lines showed."""

    lines: int = 0
    points: int = 0
    turned: int = 0  # lines that hold a point with |Im l| > π where |e^l - 1| < 1/2
    lost: int = 0  # lines with a difference above π
    inexact: int = 0  # lines with a difference above 1e-10 (1 + |l|)
    largest: float = 0.0  # difference, relative to 1 + |l|
    lost_by_principal: int = 0
    cpu_seconds: float = 0.0

    def plus(self, other: Count) -> Count:
        """Both together."""
        mine, theirs = asdict(self), asdict(other)
        joined = {key: mine[key] + theirs[key] for key in mine}
        joined["largest"] = max(self.largest, other.largest)
        return Count(**joined)


def random_law(rng: np.random.Generator) -> ShiftLaw:
    """A law from the corners: p near 0 or 1, few or very many components, any noise."""

    def draw(low: float, high: float) -> float:
        return math.exp(rng.uniform(math.log(low), math.log(high)))

    def pair() -> Pair:
        group = int(draw(1, 3e4 if rng.random() < 0.2 else 600))
        kind = rng.integers(4)
        if kind == 3:
            batch = int(draw(1, 1e5))
            population = batch + int(draw(1, 1e6)) + group
            return pair_of(
                Hypergeometric(draws=batch, population=population, marked=group),
                scale=2.0,
                noise_multiplier=draw(0.2, 1e3),
                steps=1,
            )
        near = draw(1e-7, 0.5)
        p = (near, 1 - near, rng.uniform(0.01, 0.99))[int(kind)]
        sigma = draw(0.2, 1e3)
        if rng.random() < 0.7:  # e^l turns round near |l| = 0 where σ is a fraction of p G
            sigma = p * group * draw(0.02, 0.5)
        return pair_of(
            Binomial(trials=group, probability=p),
            noise_multiplier=min(max(sigma, 0.2), 1e3),
            steps=1,
        )

    while True:
        law = pair().law
        if law.a.size > 1 and law.a[-1] <= _FARTHEST:
            return law


def _zero(law: ShiftLaw) -> float:
    """An x with l(x) near 0, by bisection."""
    low, high = -30.0, 30.0 + float(law.a[-1])
    for _ in range(40):
        x = 0.5 * (low + high)
        below = float(losses(law, np.array([x]), np.zeros(1))[0][0, 0].real) < 0
        low, high = (x, high) if below else (low, x)
    return 0.5 * (low + high)


def random_line(law: ShiftLaw, zero: float, rng: np.random.Generator) -> tuple[Floats, float]:
    """(x ascending, y): anywhere, near l = 0, and near whole turns of e^l."""
    _, slope, _ = losses(law, np.array([zero]), np.zeros(1))
    near = 0.3 / max(float(slope[0]), 1e-2)
    anywhere = rng.uniform(-12.0, 12.0 + float(law.a[-1]), _POINTS)
    close = zero + rng.uniform(-near, near, _POINTS)
    fine = zero + np.linspace(-near, near, 101)
    _, slopes, bends = losses(law, fine, np.zeros(1))
    most = min(3.0, math.sqrt(_LARGEST_BEND / max(float(bends.max()), 1e-9)))
    y = most * (1.0 - 0.999 * rng.random() ** 2)
    rounds = int(most * float(slope[0]) / (2 * math.pi))
    if rounds and rng.random() < 0.7:  # e^l is back near 1 at the middle of the line
        y = 2 * math.pi * int(rng.integers(1, rounds + 1)) / float(slope[0])
    off = np.abs(y * slopes / (2 * np.pi) - np.maximum(np.round(y * slopes / (2 * np.pi)), 1.0))
    turns = fine[np.argsort(off)[:_POINTS]]
    x = np.sort(np.concatenate([anywhere, close, turns]))
    _, _, bend = losses(law, x, np.zeros(1))
    return x[y * y * bend < _LARGEST_BEND], y


def unwrapped(law: ShiftLaw, x: float, y: float) -> complex:
    """l(x + iy), followed from the real axis; independent of the accountant's way."""
    long = np.longdouble
    a, w = law.a.astype(long), law.w.astype(long)
    e = w + a * (long(x) - a / 2)
    keep = e > e.max() - _DEEP
    a, e = a[keep], e[keep]
    top = e.max()
    weight = np.exp(e - top)
    steps = 16
    centre = float((weight @ a) / weight.sum())
    while True:
        # the turn of the centre is taken out, so that each step is small; it is added back exactly
        turn = np.exp(1j * (y / steps) * (a - centre).astype(np.float64))
        now = weight.astype(np.complex128)
        total, argument, fine = complex(now.sum()), 0.0, True
        for _ in range(steps):
            now = now * turn
            before, total = total, complex(now.sum())
            change = math.atan2((total / before).imag, (total / before).real)
            argument += change
            fine = fine and abs(change) < 0.25 * math.pi
        if fine:
            break
        steps *= 2
        if steps > 1 << 16:
            raise ArithmeticError(f"no step is small enough at x = {x}, y = {y}")
    value = np.log((weight * np.exp(1j * (a * long(y)))).sum()) + top
    whole = round((argument + centre * y - float(value.imag)) / (2 * math.pi))
    return complex(float(value.real), float(value.imag + 2 * long(np.pi) * whole))


def _near_one(ell: Complexes) -> NDArray[np.bool_]:
    """Where |e^l - 1| < 1/2."""
    level = np.minimum(ell.real, 1.0) + 1j * ell.imag  # e^1 is as far away as any more
    near: NDArray[np.bool_] = np.abs(np.exp(level) - 1) < 0.5
    return near


def principal_near_one(ell: Complexes, on_axis: Floats) -> Complexes:
    """The broken twin: the principal logarithm wherever |e^l - 1| < 1/2 and |l(x)| < 0.3."""
    turned = _near_one(ell) & (np.abs(on_axis) < 0.3)
    principal = ell.real + 1j * np.angle(np.exp(1j * ell.imag))
    return np.where(turned, principal, ell)


def scan(lines: int, seed: tuple[int, ...]) -> Count:
    """``lines`` random lines, compared point by point."""
    started = time.process_time()
    rng = np.random.default_rng(seed)
    count = Count()
    law, zero = random_law(rng), 0.0
    for i in range(lines):
        if i % _LINES_PER_LAW == 0:
            law = random_law(rng)
            zero = _zero(law)
        x, y = random_line(law, zero, rng)
        if not x.size:
            count = count.plus(Count(lines=1))
            continue
        ell = losses(law, x, np.array([0.0, y]))[0]
        truth = np.array([unwrapped(law, float(v), y) for v in x])
        off = np.abs(ell[1] - truth)
        old = principal_near_one(ell[1], ell[0].real)
        near_one = _near_one(truth)
        relative = off / (1 + np.abs(truth))
        count = count.plus(
            Count(
                lines=1,
                points=x.size,
                turned=int((near_one & (np.abs(truth.imag) > np.pi)).any()),
                lost=int((off > np.pi).any()),
                inexact=int((relative > 1e-10).any()),
                largest=float(relative.max()),
                lost_by_principal=int((np.abs(old - truth) > np.pi).any()),
            )
        )
    return count.plus(Count(cpu_seconds=time.process_time() - started))


def main(arguments: list[str]) -> int:
    """Scan, chunk by chunk; 1 if any line differs."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.accounting lines", description=__doc__
    )
    parser.add_argument("--lines", type=int, default=100_000, help="how many")
    parser.add_argument("--seed", type=int, default=20261122)
    parser.add_argument("--results", type=Path, help="JSON lines: append, and skip what is there")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    options = parser.parse_args(arguments)
    known: dict[tuple[int, int, int], Count] = {}
    if options.results is not None and options.results.exists():
        for text in options.results.read_text().splitlines():
            row = json.loads(text)
            known[row["seed"], row["chunk"], row["count"]["lines"]] = Count(**row["count"])
    total = Count()
    for chunk in range(math.ceil(options.lines / CHUNK)):
        size = min(CHUNK, options.lines - chunk * CHUNK)
        found = known.get((options.seed, chunk, size))
        if found is None:
            found = scan(size, (options.seed, chunk))
            if options.results is not None:
                row = {"seed": options.seed, "chunk": chunk, "count": asdict(found)}
                with options.results.open("a") as file:
                    file.write(json.dumps(row) + "\n")
        total = total.plus(found)
        print(f"\r{total.lines} lines, {total.lost} lost", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    for key, value in asdict(total).items():
        print(f"{key:>18} {value:.6g}", file=sys.stderr)
    if options.json:
        print(json.dumps(asdict(total)))
    return 1 if total.lost or total.inexact else 0
