"""ε over the group size by the tight accountant and by group-privacy lemmas.

Ganesh 2024, Figure 1: Poisson sampling with T = 2000, q = 1/100, δ = 1e-6. Its text names σ = 1;
the other noise multipliers and the largest k are ours. Figure 2: batches of B = 500 of n = 50 000,
the noise doubled; n is a lower bound on the smaller data set (Theorem 3.3).

Charles et al. 2024, Figure 1: the same T and p of DP-SGD-ELS; of the noise multipliers its text
names 0.5 and 1, the others and the group sizes are ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path

from papers.drawing import Figure, Row, panels, save
from userdp.accounting.group_privacy import Conversion, group_epsilon
from userdp.accounting.mechanisms import Mixture, binomial_steps, hypergeometric_steps

_LINES = (
    ("epsilon", "mixture of Gaussians (ours)", "o-", "tab:blue"),
    ("epsilon_best_from_curve", "best from one (ε, δ)", "^--", "tab:green"),
    ("epsilon_vadhan", "Vadhan's lemma", "s--", "tab:orange"),
    ("epsilon_linear", "k·ε₁ (reference, no bound)", ":", "tab:gray"),
)


def rows_by_noise(
    mechanism_of: Callable[..., Mixture],
    *,
    noise_multipliers: Sequence[float],
    group_sizes: Sequence[int],
    delta: float = 1e-6,
) -> list[Row]:
    """A row for each noise multiplier and group size, by our accountant and by the lemmas.

    ``epsilon`` and ``epsilon_lower`` are certified. ``epsilon_vadhan`` and
    ``epsilon_best_from_curve`` are upper bounds by group privacy, ``inf`` where the example-level
    δ they need lies below the smallest double. ``epsilon_linear`` is k·ε₁, which bounds nothing.

    Args:
        mechanism_of: by its keywords ``noise_multiplier`` and ``group_size``, what is priced.
        noise_multipliers: σ of each panel.
        group_sizes: k of each row.
        delta: of every row; by default that of both papers.
    """
    rows = []
    for noise in noise_multipliers:
        example = mechanism_of(noise_multiplier=noise, group_size=1)
        # both lemmas ask the curve at the same ε
        curve = cache(lambda epsilon, example=example: example.delta(epsilon).upper)
        first = example.epsilon(delta).upper
        for k in group_sizes:
            bracket = mechanism_of(noise_multiplier=noise, group_size=k).epsilon(delta)
            rows.append(
                {
                    "noise_multiplier": noise,
                    "group_size": k,
                    "epsilon": bracket.upper,
                    "epsilon_lower": bracket.lower,
                    "epsilon_vadhan": group_epsilon(curve, k, delta, Conversion.VADHAN),
                    "epsilon_best_from_curve": group_epsilon(curve, k, delta, Conversion.BEST),
                    "epsilon_linear": k * first,
                    "accountant": bracket.accountant,
                }
            )
    return rows


def draw_groups(rows: Sequence[Row], path: Path, *, title: str, noise_label: str = "σ") -> None:
    """ε over the group size, a panel for each noise multiplier; lines end where they diverge."""
    noises = sorted({row["noise_multiplier"] for row in rows})
    figure, axes = panels(len(noises))
    for axis, noise in zip(axes, noises, strict=True):
        part = sorted(
            (r for r in rows if r["noise_multiplier"] == noise), key=lambda r: r["group_size"]
        )
        for key, label, style, color in _LINES:
            finite = [(r["group_size"], r[key]) for r in part if math.isfinite(r[key])]
            axis.plot(*zip(*finite, strict=True), style, color=color, label=label, markersize=4)
            if len(finite) < len(part):
                axis.plot(*finite[-1], "x", color=color, markersize=10, markeredgewidth=2)
        axis.set_yscale("log")
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.set_title(f"{noise_label} = {noise:g}")
        axis.set_xlabel("group size")
        axis.set_ylabel("ε")
        axis.grid(alpha=0.3)
    axes[0].legend(fontsize=8)
    save(figure, path, title=f"{title}   (× : diverges after this point)")


_poisson = partial(rows_by_noise, partial(binomial_steps, sampling_probability=0.01, steps=2000))
_fixed = partial(
    rows_by_noise, partial(hypergeometric_steps, batch_size=500, population=50_000, steps=2000)
)

FIGURES = {
    "charles-figure-1": Figure(
        rows=partial(
            _poisson,
            noise_multipliers=(0.5, 1.0, 2.0, 4.0),
            group_sizes=(1, 2, 4, 6, 8, 12, 16, 24, 32),
        ),
        draw=partial(draw_groups, title="ELS, Charles et al. 2024, Figure 1", noise_label="σ_ELS"),
    ),
    "ganesh-figure-1": Figure(
        rows=partial(_poisson, noise_multipliers=(1.0, 2.0, 4.0), group_sizes=range(1, 17)),
        draw=partial(draw_groups, title="Poisson sampling, Ganesh 2024, Figure 1"),
    ),
    "ganesh-figure-2": Figure(
        rows=partial(_fixed, noise_multipliers=(2.0, 4.0, 8.0), group_sizes=range(1, 17)),
        draw=partial(draw_groups, title="fixed-size batches, Ganesh 2024, Figure 2"),
    ),
}
