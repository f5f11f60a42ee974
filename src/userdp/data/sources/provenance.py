"""Where text is from: what lies beside its file, and which model its records say wrote it.

``FILE.provenance.json`` beside a file of text says what a model descends from that wrote it
(``userdp generate``), or what it was filtered against (`userdp.data.overlap`). A generated record
names the model that wrote it, too (`GENERATED`), so that text which was mixed with other text, or
brought into another format, and whose provenance was lost, is still noticed.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from userdp.core.codec import decode
from userdp.core.files import read_json

PROVENANCE = ".provenance.json"
"""How the name of a file ends that says where the text beside it is from."""
GENERATED = "generated_by"
"""The field of a generated record that names the model that wrote it."""
WRITERS = "text_written_by"
"""The fact of a source: the models whose lineage its files' provenance tells."""


def provenance_of(text: Path) -> Path:
    """The file beside a text that says where it is from."""
    return text.with_name(f"{text.name}{PROVENANCE}")


def provenance(paths: Iterable[Path]) -> dict[str, Any]:
    """The provenance of files of text, or of folders that stand for one, as facts of a source."""
    known = [_beside(path) for path in paths]
    facts = {
        "filtered_against_private": [one for one in known if "private_data" in one],
        "text_lineage": [one["lineage"] for one in known if "lineage" in one],
        WRITERS: [one[GENERATED] for one in known if GENERATED in one],
    }
    return {name: value for name, value in facts.items() if value}


def with_lost(facts: dict[str, Any], written_by: Iterable[str]) -> dict[str, Any]:
    """Facts of a source, and whether some of its records name a model of unknown lineage."""
    kept = {name: value for name, value in facts.items() if name != WRITERS}
    lost = set(written_by) - set(facts.get(WRITERS, ()))
    return {**kept, "text_of_unknown_model": True} if lost else kept


def _beside(path: Path) -> dict[str, Any]:
    """The provenance beside a file, which may have been packed or unpacked since."""
    for name in (path.name, f"{path.name}.gz", path.name.removesuffix(".gz")):
        beside = provenance_of(path.with_name(name))
        if beside.is_file():
            said = read_json(beside, what="the provenance of a text")
            for field, hint in ((GENERATED, str), ("lineage", dict[str, Any])):
                if field in said:
                    decode(hint, said[field], what=f"{field} in {beside}")
            return said
    return {}
