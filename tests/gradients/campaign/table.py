"""The page of the campaign's results."""

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

_HEAD = """# Influence of one user

By how much leaving out one user u moves the clipped sum, over the clip norm:
‖S(D) − S(D∖u)‖ / C. It must be at most 1, whatever the model, the loss and the shapes.

* *Families*: every causal language model of `transformers` at a tiny size, trained whole or with
  LoRA, in float32; some in bfloat16 autocast, and with dropout whose masks are recorded on D and
  replayed on D∖u. D has 15 users: ragged and long ones, one without text, one without a token to
  predict, two who say the same, one with a single word, one with more rows than a pass, and three
  whose gradients are 10⁶ and 10²⁵ times as large and infinite. C is half the median norm.
* *masked, flattened, routed, dropout*: random tiny models, losses, cohorts and clip norms, aimed at
  shapes that coincide; *coupled*: losses by which one row depends on others.
* *accidents*: ordinary scripts that keep a state, change after some passes, or draw by themselves.

*Certified*: users shared passes. *Reference*: each user was computed alone. *Refused*: before
anything is charged.

`make influence`, {date}: {asked} questions; {machine}, {minutes} minutes of processor time;
{versions}.

| kind | engine | tried | certified | reference | refused | greatest ratio |
|---|---|---:|---:|---:|---:|---:|
"""


def page(rows: Sequence[Row]) -> str:
    """All of it in Markdown."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["kind"], row["engine"]), []).append(row)
    text = _HEAD.format(
        date=datetime.now(UTC).date().isoformat(),
        asked=f"{len(rows):,} of {len(jobs()):,}",
        machine=f"{os.cpu_count()} CPU cores ({platform.machine()})",
        minutes=f"{sum(row['seconds'] for row in rows) / 60:.0f}",
        versions=f"torch {torch.__version__}, transformers {transformers.__version__}",
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
