"""What text says of the models and the private data that it came from.

``FILE.provenance.json`` beside a file of text says what a model descends from that wrote it
(``userdp generate``), or what it was filtered against (`userdp.data.overlap`). A generated record
names the model that wrote it, too (`GENERATED`), so that text which was mixed with other text, or
brought into another format, and whose provenance was lost, is still noticed.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from userdp.codec import decode
from userdp.files import read_json

GENERATED = "generated_by"
"""The field of a generated record that names the model that wrote it."""
WRITERS = "text_written_by"
"""The fact of a source: the models whose lineage its files' provenance tells."""


def provenance(paths: Iterable[Path]) -> dict[str, Any]:
    """What is said beside files of text, or folders that stand for one, as facts of a source."""
    told = [_told(path) for path in paths]
    facts = {
        "filtered_against_private": [one for one in told if "private_data" in one],
        "text_lineage": [one["lineage"] for one in told if "lineage" in one],
        WRITERS: [one[GENERATED] for one in told if GENERATED in one],
    }
    return {name: value for name, value in facts.items() if value}


def with_lost(facts: dict[str, Any], written_by: Iterable[str]) -> dict[str, Any]:
    """Facts of a source, and whether a model wrote some of its records of which nothing is told."""
    told = {name: value for name, value in facts.items() if name != WRITERS}
    lost = set(written_by) - set(facts.get(WRITERS, ()))
    return {**told, "text_of_unknown_model": True} if lost else told


def _checked(told: dict[str, Any], path: Path) -> dict[str, Any]:
    """What was read; `UseError` where a field is of another type than whoever reads it expects."""
    hints: dict[str, Any] = {GENERATED: str, "lineage": dict[str, Any]}
    for name, hint in hints.items():
        if name in told:
            decode(hint, told[name], what=f"{name} in {path}")
    return told


def _told(path: Path) -> dict[str, Any]:
    """What lies beside a file, also if that was packed or unpacked since."""
    for name in (path.name, f"{path.name}.gz", path.name.removesuffix(".gz")):
        beside = path.with_name(f"{name}.provenance.json")
        if beside.is_file():
            return _checked(read_json(beside, what="what is said of a text"), beside)
    return {}
