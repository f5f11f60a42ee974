"""The page of the families: what is batched, what falls back, and what it costs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

_HEAD = """# Model families

{count} families of causal language models of `transformers`, each at a tiny size with whatever
makes its code special (tied tables, norms of queries and keys, soft caps, several kinds of layers,
experts, states), trained whole and with adapters on its linear layers. Every engine computes a
clipped sum of five ragged users (padding, an example of one token, a user of nothing else) in
float32 with C at half the median norm, and once more without each user.

*Batched*: several users share a pass. *One by one*: the reference engine computes each user alone,
under the same claim. *Refused*: before anything is charged. No engine batches part of a model: one
layer that is not covered sends the whole model to the reference.

* **{batched} of {count} families are batched whole, {adapted} with adapters.**
* Largest difference of a sum from the reference's: **{error:.1e} C**. Most that a user moved a sum:
  **{moves:.5f} C**, over {sums} engines and families.
* Mixtures of experts go one by one, also where only their attention trains. A router's choice
  jumps: rounding, which hangs on who shares the pass, may send another user's token to another
  expert, and no margin of the clip covers that (`userdp.gradients.certificate.places.steps`).

Times are processor time of one step of 16 users with one example of 64 tokens, at width 128 with
two layers, over an ordinary forward and backward pass of the same rows: {medians}. At this size
Python's own time is much of it; at real sizes `auto` costs about an ordinary step
([engines.md](../engines.md)). One by one costs the less, the more tokens a user has in a step: with
1,024 and more about as much as in batches. `userdp train` and `make_private` measure it on made-up
rows of the plan's size and say it before they charge.

`python -m benchmarks.families --page docs/results/families.md` (`make families`), {date},
{machine}; {versions}. Single results: [families.jsonl](families.jsonl).

"""

_ENGINES = ("auto", "sharded")
_TITLES = "| family | `auto` | sharded | error / C | moves / C |"
_TIMES = " time of `auto` | of one by one |"


def page(rows: Sequence[Mapping[str, Any]], *, facts: Mapping[str, str]) -> str:
    """All of it in Markdown."""
    modes = {
        mode: {row["family"]: row for row in rows if row["mode"] == mode}
        for mode in ("full", "LoRA")
    }
    answered = [one for row in rows for one in row.get("engines", {}).values() if "error" in one]
    text = _HEAD.format(
        count=len(modes["full"]),
        batched=sum(_batched(row) for row in modes["full"].values()),
        adapted=sum(_batched(row) for row in modes["LoRA"].values()),
        error=max(one["error"] for one in answered),
        moves=max(one["moves"] for one in answered),
        sums=len(answered),
        medians=_medians(rows),
        **facts,
    )
    for mode, title in (("full", "All parameters train"), ("LoRA", "Adapters")):
        text += f"## {title}\n\n{_TITLES}{_TIMES}\n|---|---|---|---|---|---|---:|---:|---:|---:|\n"
        text += "".join(_line(row) for row in modes[mode].values()) + "\n"
    return text + "## Why not in batches\n\n" + _why(rows)


def _batched(row: Mapping[str, Any]) -> bool:
    return row.get("engines", {}).get("auto", {}).get("alone") == 0


def _line(row: Mapping[str, Any]) -> str:
    if "engines" not in row:
        said = row.get("refused") or row.get("cannot", "")
        return f"| {row['family']} | refused: {said} |" + " |" * 8 + "\n"
    engines = row["engines"]
    answered = [one for one in engines.values() if "error" in one]
    price = row.get("price") or {}
    cells = [
        row["family"],
        *(_what(engines[name]) for name in _ENGINES),
        f"{max(one['error'] for one in answered):.0e}",
        f"{max(one['moves'] for one in answered):.5f}",
        *(f"{price[name]:.1f}" if name in price else "" for name in ("auto", "reference")),
    ]
    return f"| {' | '.join(cells)} |\n"


def _what(engine: Mapping[str, Any]) -> str:
    if "refused" in engine:
        return "refused"
    if "cannot" in engine:
        return "FSDP fails"
    return "one by one" if engine["alone"] else "batched"


def _why(rows: Sequence[Mapping[str, Any]]) -> str:
    lines = ["| family | trains | layers |\n|---|---|---|\n"]
    for row in rows:
        if "engines" not in row or _batched(row):
            continue
        told = [_told(one) for one in row.get("obstacles", ())] or [row["reason"]]
        lines.append(f"| {row['family']} | {row['mode']} | {'; '.join(told)} |\n")
    return "".join(lines)


def _told(obstacle: Mapping[str, Any]) -> str:
    names = dict.fromkeys(re.sub(r"(?<=\.)\d+(?=\.|$)", "*", n) for n in obstacle["modules"])
    return f"`{', '.join(names)}` ({obstacle['kind']}): {obstacle['reason']}"


def _medians(rows: Sequence[Mapping[str, Any]]) -> str:
    told = []
    for name, title in (("auto", "`auto` where it batches"), ("reference", "one by one")):
        ratios = sorted(row["price"][name] for row in rows if row.get("price") and _batched(row))
        if ratios:
            told.append(f"{title} {ratios[len(ratios) // 2]:.1f} (median)")
    return ", ".join(told)
