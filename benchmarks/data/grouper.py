"""Records by user: ours beside Dataset Grouper, and beside bare Apache Beam, on the same file.

The part ``grouper``. Theirs is `published`, ours is `user_lines`. Bare Beam writes a JSON line per
user, which is what ours writes too, so these two are compared line by line.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.data.corpus import write_corpus
from benchmarks.data.published import BEAM, DATASET_GROUPER, outside
from benchmarks.data.running import child, say


def grouper(folder: Path, records: int, few: int) -> dict[str, Any]:
    corpus, shorter = folder / "corpus.jsonl", folder / "few.jsonl"
    write_corpus(corpus, records)
    write_corpus(shorter, few)
    result = compare(folder, corpus, shorter, records, few)
    for line in describe(result):
        say(line)
    return result


def compare(
    folder: Path, corpus: Path, few: Path, records: int, few_records: int
) -> dict[str, Any]:
    """Seconds of the three, and their ratios.

    Args:
        folder: for what they write.
        corpus: for ours and Beam.
        few: a smaller file for ours and Dataset Grouper, which takes milliseconds per record.
        records: in ``corpus``.
        few_records: in ``few``.
    """
    result: dict[str, Any] = {"records": records, "few_records": few_records}
    ours, beam = [], []
    for _ in range(3):  # in turn, so that neighbours on the machine meet both
        ours.append(child("--group", str(corpus), str(folder / "ours"))["seconds"])
        beam.append(outside(BEAM, corpus, folder / "beam"))
    result["ours_seconds"] = ours
    if failed := _failures(beam):
        result["beam_failed"] = failed
    else:
        result["beam_seconds"] = [run["seconds"] for run in beam]
        result["beam_version"] = beam[0]["version"]
        result["same_groups"] = groups([folder / "ours"]) == groups(sorted(folder.glob("beam-*")))
        result["ratio_beam_over_ours"] = _ratio(result["beam_seconds"], ours)
    ours, grouper = [], []
    for _ in range(2):
        ours.append(child("--group", str(few), str(folder / "few"))["seconds"])
        grouper.append(outside(DATASET_GROUPER, few, folder / "grouper"))
    result["ours_few_seconds"] = ours
    if failed := _failures(grouper):
        result["dataset_grouper_failed"] = failed
    else:
        result["dataset_grouper_seconds"] = [run["seconds"] for run in grouper]
        result["dataset_grouper_version"] = grouper[0]["version"]
        result["ratio_dataset_grouper_over_ours"] = _ratio(result["dataset_grouper_seconds"], ours)
    return result


def describe(result: dict[str, Any]) -> Iterator[str]:
    """Lines for people."""
    for name, library, records, ours in (
        ("beam", "Beam", result["records"], result["ours_seconds"]),
        ("dataset_grouper", "Dataset Grouper", result["few_records"], result["ours_few_seconds"]),
    ):
        if f"{name}_failed" in result:
            yield f"{library} did not run: {result[f'{name}_failed']}"
            continue
        theirs = np.median(result[f"{name}_seconds"])
        yield (
            f"grouping {records:,} records: ours {np.median(ours):.2f} s, "
            f"{library} {theirs:.1f} s, ratio {result[f'ratio_{name}_over_ours']:.1f}"
        )


def _failures(runs: list[dict[str, Any]]) -> str | None:
    return next((run["failed"] for run in runs if "failed" in run), None)


def _ratio(theirs: list[float], ours: list[float]) -> float:
    """The median over neighbouring runs."""
    return float(np.median([a / b for a, b in zip(theirs, ours, strict=True)]))


def groups(files: list[Path]) -> dict[str, list[str]]:
    """Each user's texts, in no order, from files of JSON lines."""
    lines = (line for file in files for line in file.open())
    return {user: sorted(texts) for user, texts in map(json.loads, lines)}
