"""Charles et al. 2024, Figure 10: histograms of how many training examples users hold."""

from __future__ import annotations

from functools import partial

from papers.user_sizes import draw_histograms, histogram_rows

rows = histogram_rows
"""A row for each store and bin."""

draw = partial(
    draw_histograms,
    title="examples per user, Charles et al. 2024, Figure 10",
    unit="examples",
)
"""A panel for each store."""
