"""Charles et al. 2024, Conjecture 1, on 1,000 random settings: σ_ELS <= K·σ_ULS at equal p = q.

T, p, K, σ_ULS and δ are drawn on logarithmic scales; ε is what ULS has at δ. The conjecture says
that ELS with noise K·σ_ULS has at this ε no larger δ than ULS. Certified brackets decide.

It fails at the end of large δ, for few steps or large p: close to ε = 0 δ is the total variation
distance, which is concave in the shift, so that K shifts of 1/K are worth more than one of 1.
(T = 1, p = 1/2, K = 2, σ_ULS = 1/2: δ(0) of ELS is 1.035 times that of ULS.) Lemma 1 of the paper,
on Rényi divergences, says nothing of that end of the curve. See docs/results/conjecture-1.md.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path

from papers.drawing import Figure, Row, panels, save
from userdp.accounting.bracket import Bracket
from userdp.accounting.mechanisms import binomial_steps

_LEAST_RATIO = 1e-12


class Verdict(StrEnum):
    """``HOLDS`` and ``FAILS`` are certified; ``UNDECIDED`` means that the brackets overlap."""

    HOLDS = "holds"
    FAILS = "fails"
    UNDECIDED = "undecided"


def verdict_of(examples: Bracket, users: Bracket) -> Verdict:
    """Compare δ of ELS at noise K·σ with δ of ULS at noise σ, both at one ε.

    As δ falls in the noise, the conjecture says the same as: at every ε that of ELS is no larger.
    Guarantee: both brackets are certified, so ``HOLDS`` and ``FAILS`` are.
    """
    if examples.upper <= users.lower:
        return Verdict.HOLDS
    return Verdict.FAILS if examples.lower > users.upper else Verdict.UNDECIDED


def rows(*, settings: int = 1000, seed: int = 0) -> list[Row]:
    """A row for each setting: both δ, each as a certified bracket, and the verdict.

    Args:
        settings: how many.
        seed: of the draw.
    """
    draw = random.Random(seed)

    def between(low: float, high: float) -> float:
        return math.exp(draw.uniform(math.log(low), math.log(high)))

    rows: list[Row] = []
    for _ in range(settings):
        steps, k = round(between(1, 10_000)), round(between(2, 256))
        p, sigma, delta = between(1e-5, 0.9), between(0.3, 30), between(1e-12, 1e-2)
        users = binomial_steps(sampling_probability=p, noise_multiplier=sigma, steps=steps)
        examples = binomial_steps(
            sampling_probability=p,
            group_size=k,
            noise_multiplier=k * sigma,
            steps=steps,
        )
        epsilon = users.epsilon(delta).upper
        of_examples, of_users = examples.delta(epsilon), users.delta(epsilon)
        if verdict_of(of_examples, of_users) is Verdict.UNDECIDED:
            # δ does not rise with ε. Far out, below the smallest double, the accountant may know
            # an upper end at a smaller ε alone.
            uppers = [examples.delta(share * epsilon).upper for share in (0.9, 0.7, 0.5)]
            of_examples = replace(of_examples, upper=min(of_examples.upper, *uppers))
        rows.append(
            {
                "steps": steps,
                "sampling_probability": p,
                "group_size": k,
                "noise_multiplier_uls": sigma,
                "epsilon": epsilon,
                "delta_uls": of_users.lower,
                "delta_uls_upper": of_users.upper,
                "delta_els_lower": of_examples.lower,
                "delta_els": of_examples.upper,
                "verdict": str(verdict_of(of_examples, of_users)),
            }
        )
    return rows


def draw(rows: Sequence[Row], path: Path) -> None:
    """δ of ELS over δ of ULS in every setting, as a PNG; the conjecture says at most 1."""
    figure, (axis,) = panels(1, width=7, height=4.5)
    colors = {Verdict.HOLDS: "tab:blue", Verdict.FAILS: "tab:red", Verdict.UNDECIDED: "tab:orange"}
    for verdict, color in colors.items():
        part = [row for row in rows if row["verdict"] == verdict]
        sizes, ratios = [row["group_size"] for row in part], [_ratio(row) for row in part]
        axis.scatter(sizes, ratios, s=8, color=color, label=f"{verdict}: {len(part)}")
    axis.axhline(1, color="black", linewidth=0.8)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_xlabel("K")
    axis.set_ylabel(f"δ of ELS at Kσ / δ of ULS at σ (least {_LEAST_RATIO:g})")
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)
    save(figure, path, title=f"Conjecture 1 of Charles et al. 2024 in {len(rows)} settings")


def _ratio(row: Row) -> float:
    if row["delta_uls"] <= 0:
        return _LEAST_RATIO if row["delta_els"] <= 0 else 1.0
    return max(float(row["delta_els"] / row["delta_uls"]), _LEAST_RATIO)


FIGURES = {"charles-conjecture-1": Figure(rows=rows, draw=draw)}
