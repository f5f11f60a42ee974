"""Chua et al. 2024, Figure 7: effective noise over τ/C, at the other ε of the paper's Table 6.

The constants and their sources are those of `papers.chua.asi_liu`.
"""

from __future__ import annotations

from functools import partial

from papers.chua import asi_liu

rows = partial(asi_liu.rows, epsilons=(0.5, 1.0, 8.0))
"""A row for each ε, k, τ/C and series."""

draw = partial(asi_liu.draw, title="User-wise DP-SGD and Asi & Liu, Chua et al. 2024, Figure 7")
"""A row of panels for each ε, a column for each k."""
