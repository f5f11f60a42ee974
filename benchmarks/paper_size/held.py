"""Measurements beside the predictions that were made before them, as a part of the page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.paper_size.settings import Setting

NEAR_RATIO, NEAR_MEMORY = 0.03, 0.10
"""How near a prediction is meant to come: the ratio to within 0.03, the memory to within 10%."""

_HEAD = """
## Held against predictions

Each was made by `python -m benchmarks.cost predict` before anything of the setting was measured
(`docs/results/cost-predicted.jsonl`; see [Cost](../cost.md)), and has not changed since. The aim:
the ratio within {ratio}, either peak within {memory:.0%}. A predicted peak is of tensors in the steps.

| model | G | ratio: predicted | measured | measured − predicted | plain seconds: predicted | measured | plain peak: measured / predicted | private peak: measured / predicted | within the aim |
|---|---:|---:|---:|---:|---:|---:|---:|---:|---|
"""  # noqa: E501  a table's head is one line


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What was measured of one setting.

    Attributes:
        setting: which.
        seconds: of the plain gradient, the median of its rounds.
        ratio: of the private to the plain gradient's seconds, the median of the rounds.
        peaks: bytes, plain and private.
    """

    setting: Setting
    seconds: float
    ratio: float
    peaks: Mapping[str, int]


def held(measured: Iterable[Measured], predictions: Mapping[str, Mapping[str, Any]]) -> str:
    """The section, or nothing where no measured setting was predicted.

    Args:
        measured: settings with rounds and peaks.
        predictions: by the key of the setting.
    """
    lines = [_line(one, predictions[one.setting.key]) for one in measured if _has(one, predictions)]
    if not lines:
        return ""
    head = _HEAD.format(ratio=NEAR_RATIO, memory=NEAR_MEMORY)
    return f"{head}{chr(10).join(lines)}\n"


def _has(one: Measured, predictions: Mapping[str, Mapping[str, Any]]) -> bool:
    return one.setting.key in predictions


def _line(one: Measured, prediction: Mapping[str, Any]) -> str:
    off = one.ratio - prediction["ratio"]
    peaks = [one.peaks[kind] / prediction[f"bytes_{kind}"] for kind in ("plain", "private")]
    near = {
        "ratio": abs(off) <= NEAR_RATIO,
        "memory": all(abs(share - 1) <= NEAR_MEMORY for share in peaks),
    }
    cells = [
        one.setting.model,
        str(one.setting.group),
        f"{prediction['ratio']:.3f}",
        f"{one.ratio:.3f}",
        f"{off:+.3f}",
        f"{prediction['seconds_plain']:.1f}",
        f"{one.seconds:.1f}",
        *(f"{share:.2f}" for share in peaks),
        "; ".join(f"{what}: {'yes' if met else 'no'}" for what, met in near.items()),
    ]
    return f"| {' | '.join(cells)} |"
