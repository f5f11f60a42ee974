"""Where else a store's text left something: the folders of its runs, and files of scores.

``places.jsonl`` in the store's folder (0600) has a line for each, written when it is made, so that
an erasure finds them. What was moved since is not found: its operator names it.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

from userdp import files
from userdp.codec import decode
from userdp.data import meta as layout
from userdp.errors import UseError
from userdp.strict_json import parse


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
    """The places of a kind that were noted, whether or not anything is there now.

    Raises:
        UseError: a line is damaged.
    """
    try:
        lines = (store / layout.PLACES).read_bytes().splitlines()
    except FileNotFoundError:
        return []
    found: list[str] = []
    for line in lines:
        kind, path = _noted(store, line)
        if kind == place and path not in found:
            found.append(path)
    return found


def _noted(store: Path, line: bytes) -> tuple[str, str]:
    """Kind and path of what a line notes; an empty kind where it notes nothing."""
    try:
        values = decode(dict[str, str], parse(line), what="a line")
        return values["kind"], values["path"]
    except (ValueError, KeyError) as error:
        if not line.endswith(b"}"):  # a crash cut it short, before anything was made there
            return "", ""
        raise UseError(
            f"{store / layout.PLACES} is damaged: an erasure would not find all that was made of "
            "a person's text",
            hint="put back the file that was there",
        ) from error
