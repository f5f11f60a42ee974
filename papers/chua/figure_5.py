"""Chua et al. 2024, Figure 5: how many training records privacy units hold.

A store counts examples. Where its examples are longer than its longest record (``userdp prepare
--seq-len 8192``), an example is a record.
"""

from __future__ import annotations

from functools import partial

from papers.user_sizes import draw_histograms, histogram_rows

rows = histogram_rows
"""A row for each store and bin."""

draw = partial(
    draw_histograms,
    title="records per privacy unit, Chua et al. 2024, Figure 5",
    unit="records",
)
"""A panel for each store."""
