"""The tables of the campaign's results."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import torch
import transformers

from tests.gradients.campaign.jobs import jobs, wrong

Row = Mapping[str, Any]

BEGINNING = "`make influence`, "
"""With which the results on the page begin; what stands before it there explains them."""


def results(rows: Sequence[Row]) -> str:
    """When and where they were asked, and the answers, in Markdown."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["kind"], row["engine"]), []).append(row)
    date, minutes = datetime.now(UTC).date().isoformat(), sum(row["seconds"] for row in rows) / 60
    text = (
        f"{BEGINNING}{date}: {len(rows):,} of {len(jobs()):,} questions; "
        f"{os.cpu_count()} CPU cores ({platform.machine()}), "
        f"{minutes:.0f} minutes of processor time;\n"
        f"torch {torch.__version__}, transformers {transformers.__version__}.\n\n"
        "| kind | engine | tried | certified | reference | refused | greatest ratio |\n"
        "|---|---|---:|---:|---:|---:|---:|\n"
    )
    text += "".join(_line(*key, group) for key, group in groups.items())
    accidents = [row for row in rows if row["kind"] == "accidents"]
    if accidents:
        text += "\n| accident | way | ratio |\n|---|---|---:|\n"
        text += "".join(
            f"| {row['name']} | {row['way']} | {_ratio([row])} |\n" for row in accidents
        )
    bad = [
        f"* {row['kind']}, {row['engine']}, {row['name']}: {row['way']} "
        f"{row.get('said', row.get('ratio'))}\n"
        for row in rows
        if wrong(row)
    ]
    return text + "".join(["\n**Wrong:**\n\n", *bad]) if bad else text


def _line(kind: str, engine: str, rows: Sequence[Row]) -> str:
    tried = [row for row in rows if row["way"] != "not built"]
    ways = [
        sum(row["way"] == way for row in tried) for way in ("certified", "reference", "refused")
    ]
    counts = " | ".join(map(str, (len(tried), *ways)))
    return f"| {kind} | {engine} | {counts} | {_ratio(tried)} |\n"


def _ratio(rows: Sequence[Row]) -> str:
    ratios = [row["ratio"] for row in rows if "ratio" in row]
    return f"{max(ratios):.5f}" if ratios else "—"
