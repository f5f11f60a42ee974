"""Data sets of the papers: LEAF's JSON, Stack Overflow as one SQLite file, C4 and CC-News.

**leaf** (Caldas et al. 2018): Shakespeare, FEMNIST, Sent140 and the like. Expected input:
``*.json`` files, or LEAF's ``data`` folder with ``train/`` and ``test/``; files in a folder
``test`` beside a folder ``train`` are held out::

    {"users": ["PLAY_ROLE"], "num_samples": [2],
     "user_data": {"PLAY_ROLE": {"x": ["eighty characters of a speec", "..."], "y": ["h", "."]}}}

A sample whose ``x`` is text becomes the text ``x + y``; a list of texts and numbers (Sent140) is
joined by blanks. A list of numbers in [0, 1] (FEMNIST's pixels) becomes ``y: 0 17 255 ...``, each
number times 255.

**stackoverflow**, as TensorFlow Federated hands it out. Expected input: ``stackoverflow.sqlite``
(unpack ``.lzma`` first), with the table ``examples`` (``split_name``, ``client_id``,
``serialized_example_proto``); each example is a ``tf.train.Example`` with the features ``tokens``
(the text) and ``creation_date``.

The splits are the data set's own, by date: ``train`` (before 2018-01-01 UTC) is trained on and
``test`` (after) held out, as in Charles et al. 2024, Appendix D; ``heldout`` is not read. To follow
the paper, hold out no further users: ``--held-out-users 0``. For the same data as JSON Lines or
Parquet use ``--set input.date=creation_date --set input.held_out_from=2018-01-01 --split given``.

**c4, ccnews**: web text (extra ``web``). Expected input, JSON Lines or Parquet, as
``c4-train.00000-of-01024.json.gz`` of ``allenai/c4``, or ``cc_news.jsonl``::

    {"url": "https://www.example.co.uk/a", "timestamp": "2019-04-25T12:57:54Z", "text": "..."}

The user is ``example.co.uk``. The split is the one of Charles et al. 2024, Appendix D, for CC-News:
users of a single record are dropped; the first tenth of each user's records, at most 32, is held
out. The public-suffix list that `tldextract` carries tells which part of a host name is
registered; no network is used.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from userdp.core.environment import library
from userdp.core.errors import UseError, kind_of
from userdp.data.records import Drop
from userdp.data.sources.input_files import beginning, expand
from userdp.data.sources.rows_to_records import Table, plain_parser, record_of
from userdp.data.sources.source import At, Entry, SourceOptions
from userdp.data.sources.tables import open_tables

_MAGIC = b"SQLite format 3\0"
_ROWS = (
    "SELECT client_id, split_name, serialized_example_proto FROM examples "
    "WHERE split_name IN ('train', 'test') ORDER BY rowid"
)
_SIZE = rb"[\x80-\xff]*[\x00-\x7f]"
_TOKENS = re.compile(rb"\n\x06tokens\x12%b\n%b\n(%b)" % (_SIZE, _SIZE, _SIZE))
"""In protobuf's wire format: the key, then a feature that holds a list of bytes that holds a value,
each with its size before it. Features of the same name that a post's own text spells are that
person's words, too."""


def is_leaf(path: Path) -> bool:
    """Whether a .json file, or the first one in a folder, begins as LEAF's do.

    JSON Lines may begin so too (records of several ``users``), but are not named .json.
    """
    file = min([entry for entry in path.rglob("*.json") if entry.is_file()] or [path])
    text = beginning(file).lstrip() if file.suffix == ".json" else b""
    return text.startswith(b"{") and (b'"users"' in text or b'"user_data"' in text)


def leaf_files(paths: list[str]) -> tuple[Path, ...]:
    """Beside ``train`` and ``test`` LEAF's scripts leave the same samples in other folders."""
    files = expand(paths, suffixes=(".json",), what="leaf")
    parts = tuple(one for one in files if one.absolute().parent.name in ("train", "test"))
    return parts if any(one.absolute().parent.name == "train" for one in parts) else files


def read_leaf(path: Path, options: SourceOptions, at: At) -> Iterator[Entry]:
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
            yield record_of(user, _sample_text(x, y), held_out)


def _sample_text(x: Any, y: Any) -> Any:
    if isinstance(x, str):
        return x + y if isinstance(y, str) else x
    if not isinstance(x, list) or not x:
        return x
    if all(isinstance(value, int | float) and 0 <= value <= 1 for value in x):
        return f"{y}: " + " ".join(str(round(255 * value)) for value in x)
    return " ".join(str(value) for value in x)


def is_sqlite(path: Path) -> bool:
    """Whether it is an SQLite file."""
    return beginning(path).startswith(_MAGIC)


def read_stackoverflow(path: Path, options: SourceOptions, at: At) -> Iterator[Entry]:
    """The posts of the training and test splits, by client."""
    address, done = f"{path.absolute().as_uri()}?mode=ro", 0
    try:
        with closing(sqlite3.connect(address, uri=True)) as database:
            database.text_factory = bytes
            for client, split, example in database.execute(_ROWS):
                yield record_of(client, _post(example), split == b"test")
                done += len(example) if isinstance(example, bytes) else 0
                at(done)
    except (sqlite3.Error, UnicodeError) as error:  # damaged names are no UTF-8
        raise UseError(
            f"{path} cannot be read as Stack Overflow's SQLite file: {kind_of(error)}",
            hint="expected the table `examples` of TensorFlow Federated's data set",
        ) from error


def _post(example: Any) -> bytes | Drop:
    """The first value of the feature ``tokens``."""
    if not isinstance(example, bytes):  # SQLite's columns hold any type; of a number n come n zeros
        return Drop.UNREADABLE
    found = _TOKENS.search(example)
    if found is None:
        return Drop.UNREADABLE
    size = sum((byte & 127) << 7 * place for place, byte in enumerate(found[1]))
    text = example[found.end() : found.end() + size]
    return text if len(text) == size else Drop.UNREADABLE


def open_web(paths: list[str], options: SourceOptions, *, kind: str) -> Table:
    """The source for files, folders and patterns ``paths`` of kind "c4" or "ccnews"."""
    named = replace(options, user=options.url)
    # C4 names its files *.json.gz though they are JSON Lines.
    table = open_tables(paths, named, more=(".json", ".json.gz"))
    _, parse = plain_parser(named, domain_of)
    return replace(table, kind=kind, parse=parse)


def is_c4(path: Path) -> bool:
    """By C4's own file names."""
    names = path.iterdir() if path.is_dir() else (path,)
    return any(file.name.startswith("c4-") and ".json" in file.name for file in names)


@lru_cache(maxsize=2**16)
def domain_of(url: str) -> bytes | Drop:
    """The registered domain of a URL, or why there is none.

    >>> domain_of("https://news.bbc.co.uk:443/world?x=1"), domain_of("http://192.168.0.1/")
    (b'bbc.co.uk', <Drop.NO_DOMAIN: 'URL without a registered domain'>)
    """
    try:
        parts = _extractor()(url)
        if not (parts.domain and parts.suffix):
            return Drop.NO_DOMAIN
        # Hosts ignore case, and are written in letters or in punycode: one spelling of each.
        return f"{parts.domain}.{parts.suffix}".lower().encode("idna").decode("idna").encode()
    except (UnicodeError, ValueError):
        return Drop.NO_DOMAIN


@lru_cache
def _extractor() -> Callable[[str], Any]:
    tldextract = library("tldextract", extra="web", what="telling the domain of a URL")
    extract: Callable[[str], Any] = tldextract.TLDExtract(suffix_list_urls=(), cache_dir=None)
    return extract
