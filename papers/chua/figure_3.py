"""Chua et al. 2024, Figure 3: effective noise over τ/C, at ε = 3.

The constants and their sources are those of `papers.chua.asi_liu`.
"""

from __future__ import annotations

from functools import partial

from papers.chua import asi_liu

rows = partial(asi_liu.rows, epsilons=(3.0,))
"""A row for each k, τ/C and series."""

draw = partial(asi_liu.draw, title="User-wise DP-SGD and Asi & Liu, Chua et al. 2024, Figure 3")
"""A panel for each k."""
