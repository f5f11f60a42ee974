"""Where else a store's text left something: the folders of its runs, and files of scores.

``places.jsonl`` in the store's folder (0600) has a line for each, written when it is made, so that
an erasure finds them. What was moved since is not found: its operator names it.
"""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path

from userdp import files
from userdp.data import format as layout


class Place(StrEnum):
    """What lies at a place."""

    RUN = "run"
    SCORES = "scores"


def remember(store: Path, place: Place, path: Path) -> None:
    """Note that something made of the store's text lies at ``path``; on the disk once it is made.

    Args:
        store: the store's folder.
        place: what it is.
        path: where it will lie.
    """
    known = str(path.resolve())
    if known not in places_of(store, place):
        files.append_line(store / layout.PLACES, {"kind": str(place), "path": known})
        files.sync(store / layout.PLACES)


def places_of(store: Path, place: Place) -> list[str]:
    """The places of a kind that were noted, whether or not anything is there now."""
    try:
        lines = (store / layout.PLACES).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    found = []
    for line in lines:
        try:
            noted = json.loads(line)
        except ValueError:  # a crash cut it short, before anything was made there
            continue
        if noted["kind"] == place and noted["path"] not in found:
            found.append(noted["path"])
    return found
