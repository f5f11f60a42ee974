"""LEAF JSON (Caldas et al. 2018): Shakespeare, FEMNIST, Sent140 and the like.

Expected input: ``*.json`` files, or LEAF's ``data`` folder with ``train/`` and ``test/``; what lies
in a folder ``test`` beside a folder ``train`` is held out::

    {"users": ["PLAY_ROLE"], "num_samples": [2],
     "user_data": {"PLAY_ROLE": {"x": ["eighty characters of a speec", "..."], "y": ["h", "."]}}}

A sample whose ``x`` is text becomes the text ``x + y``; a list of texts and numbers (Sent140) is
joined by blanks. A list of numbers in [0, 1] (FEMNIST's pixels) becomes ``y: 0 17 255 ...``, each
number times 255.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from userdp.core.errors import UseError, kind_of
from userdp.data.sources.input_files import beginning
from userdp.data.sources.parsing import record_of
from userdp.data.sources.source import At, Entry, SourceOptions


def is_leaf(path: Path) -> bool:
    """Whether a .json file, or the first one in a folder, begins as LEAF's do.

    JSON Lines may begin so too (records of several ``users``), but are not named .json.
    """
    files = [entry for entry in path.rglob("*.json") if entry.is_file()] or [path]
    file = min(files)
    text = beginning(file).lstrip()
    return (
        file.suffix == ".json"
        and text.startswith(b"{")
        and (b'"users"' in text or b'"user_data"' in text)
    )


def read(path: Path, options: SourceOptions, at: At) -> Iterator[Entry]:
    """The samples of a file, which is held in memory while it is read."""
    above = path.absolute().parent
    held_out = above.name == "test" and (above.parent / "train").is_dir()
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise UseError(f"{path} cannot be read as JSON: {kind_of(error)}") from error
    data = content.get("user_data") if isinstance(content, dict) else None
    if not isinstance(data, dict):
        raise UseError(
            f"{path} is not LEAF JSON: it has no object `user_data`",
            hint="expected users, num_samples and user_data",
        )
    for user, samples in data.items():
        lists = samples if isinstance(samples, dict) else {}
        inputs, labels = lists.get("x"), lists.get("y")
        if not isinstance(inputs, list) or not isinstance(labels, list):
            raise UseError(f"{path} is not LEAF JSON: a user has no lists `x` and `y`")
        if len(labels) != len(inputs):
            raise UseError(f"{path} is not LEAF JSON: a user's `x` and `y` differ in length")
        for x, y in zip(inputs, labels, strict=True):
            yield record_of(user, _text(x, y), held_out)


def _text(x: Any, y: Any) -> Any:
    if isinstance(x, str):
        return x + y if isinstance(y, str) else x
    if not isinstance(x, list) or not x:
        return x
    if all(isinstance(value, int | float) and 0 <= value <= 1 for value in x):
        return f"{y}: " + " ".join(str(round(255 * value)) for value in x)
    return " ".join(str(value) for value in x)
