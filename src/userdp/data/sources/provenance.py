"""What text says of the models and the private data that it came from.

``FILE.provenance.json`` beside a file of text says what a model descends from that wrote it
(``userdp generate``), or what it was filtered against (`userdp.data.overlap`). A generated record
names the model that wrote it, too (`GENERATED`), so that text which was brought into another
format, and whose provenance was lost, is still noticed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

GENERATED = "generated_by"
"""The field of a generated record that names the model that wrote it."""


def provenance(
    paths: Iterable[Path], fields_of: Callable[[Path], Collection[str]]
) -> dict[str, Any]:
    """What is said of files of text, for the facts of their source.

    Args:
        paths: files, or folders that stand for one.
        fields_of: the names of the fields of a file's first record; empty where it cannot be read.
    """
    told = [(path, _told(path)) for path in paths]
    facts = {
        "filtered_against_private": [one for _, one in told if "private_data" in one],
        "text_lineage": [one["lineage"] for _, one in told if "lineage" in one],
        "text_of_unknown_model": any(
            "lineage" not in one and GENERATED in fields_of(path) for path, one in told
        ),
    }
    return {name: value for name, value in facts.items() if value}


def _told(path: Path) -> dict[str, Any]:
    beside = path.with_name(f"{path.name}.provenance.json")
    return dict(json.loads(beside.read_bytes())) if beside.is_file() else {}
