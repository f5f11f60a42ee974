"""Characters as numbers, and text or LEAF files as a silo's items."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from userdp.errors import UseError
from userdp.federated.data import SubjectItems
from userdp.vocabulary import require_count

CHARACTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""LEAF's alphabet for Shakespeare, public; number 0 stands for every other character."""

VOCABULARY = len(CHARACTERS) + 1
_NUMBERS = {character: number for number, character in enumerate(CHARACTERS, start=1)}


def encode(text: str) -> list[int]:
    """The numbers of a text's characters, each below `VOCABULARY`.

    >>> encode(" é")
    [2, 0]
    """
    return [_NUMBERS.get(character, 0) for character in text]


def read_texts(path: Path) -> Iterator[tuple[str, str]]:
    """(user, text) of each line of a JSON Lines file with the fields ``user`` and ``text``.

    Raises:
        UseError: the file cannot be read, or a line is not of this form.
    """
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                record = json.loads(line)
                user, text = record["user"], record["text"]
                if not isinstance(user, str) or not isinstance(text, str):
                    raise UseError(f"line {number} of {path}: user and text must be strings")
                yield user, text
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, UseError):
            raise
        raise UseError(f"cannot read records with user and text from {path}: {error}") from error


def character_items(texts: Iterable[tuple[str, str]], *, seq_len: int) -> SubjectItems:
    """Items of ``seq_len`` + 1 characters: a subject's texts joined in order, and cut.

    What remains at a subject's end is an item if it has two characters.
    """
    require_count("seq_len", seq_len)
    joined: dict[str, list[int]] = {}
    for user, text in texts:
        joined.setdefault(user, []).extend(encode(text + "\n"))
    pieces: list[list[int]] = []
    owners: list[int] = []
    for owner, numbers in enumerate(joined.values()):
        for begin in range(0, len(numbers) - 1, seq_len):
            pieces.append(numbers[begin : begin + seq_len + 1])
            owners.append(owner)
    rows = np.zeros((len(pieces), seq_len + 1), dtype=np.int64)
    for row, piece in zip(rows, pieces, strict=True):
        row[: len(piece)] = piece
    lengths = np.array([len(piece) for piece in pieces], dtype=np.int64)
    return SubjectItems.of(rows, lengths, np.array(owners, dtype=np.int64))


def read_leaf(paths: Iterable[Path]) -> SubjectItems:
    """LEAF's JSON: FEMNIST (``x`` a list of pixels in [0, 1], ``y`` a class) or Shakespeare (text).

    Raises:
        UseError: a file is not LEAF's, or samples differ in kind or size.
    """
    rows: list[list[int]] = []
    owners: list[str] = []
    for path in paths:
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            users: dict[str, Any] = content["user_data"]
            for user, samples in users.items():
                for x, y in zip(samples["x"], samples["y"], strict=True):
                    if isinstance(x, str):
                        rows.append(encode(x + str(y)))
                    else:
                        rows.append([*(round(255 * value) for value in x), int(y)])
                    owners.append(user)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UseError(f"{path} is not a LEAF file: {error}") from error
    if not rows or len({len(row) for row in rows}) != 1:
        raise UseError("the LEAF files hold no samples, or samples of different sizes")
    array = np.array(rows, dtype=np.int64)
    return SubjectItems.of(
        array, np.full(len(array), array.shape[1], dtype=np.int64), np.array(owners)
    )
