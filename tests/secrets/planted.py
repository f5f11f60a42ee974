"""People whose ids, texts, fields and files carry marks that stand nowhere else.

Each kind of secret has a mark of its own, and every word of a text carries one, so that a fragment
gives itself away. The numbers of people and of records are primes that no constant of a plan has.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections import defaultdict
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from userdp.data.store_tokenizer import StoreTokenizer
from userdp.data.user_store import UserStore

USERS, RECORDS = 263, 1009
SYLLABLES = ("bor", "dim", "fal", "gup", "hek", "jor", "lam", "nib", "pos", "rud", "sev", "tok")


class Kind(StrEnum):
    """What must not come out."""

    ID = "an id"
    TEXT = "a text"
    FIELD = "a field beside the text"
    FILE = "the name of an input"
    TOKENS = "tokens of a text"
    DIGEST = "a digest of something private"
    NUMBER = "an exact number"


MARKS = {
    Kind.ID: "wyzzaqmup",
    Kind.TEXT: "vexquorb",
    Kind.FIELD: "kolxubdaz",
    Kind.FILE: "jurbaxnet",
}


class Person(NamedTuple):
    """One user, and what they wrote."""

    id: str
    texts: tuple[str, ...]


def people() -> tuple[Person, ...]:
    """All of them, always the same."""
    draw = random.Random(1)
    owners = [*range(USERS), *draw.choices(range(USERS), k=RECORDS - USERS)]
    texts: dict[int, list[str]] = defaultdict(list)
    for owner in owners:
        words = [MARKS[Kind.TEXT] + "".join(draw.choices(SYLLABLES, k=2)) for _ in range(5)]
        texts[owner].append(" ".join(words))
    named = "Wyzzaqmup-{:03d}ŵ@planted.example"
    return tuple(Person(named.format(number), tuple(texts[number])) for number in range(USERS))


PEOPLE = people()


def rows() -> list[dict[str, str]]:
    """A row a record, with a field that nobody asked for; no person's rows stand together."""
    found = [
        {"author": one.id, "message": text, "ward": f"{MARKS[Kind.FIELD]}-{number}"}
        for number, one in enumerate(PEOPLE)
        for text in one.texts
    ]
    random.Random(2).shuffle(found)
    return found


def write_jsonl(folder: Path, name: str = f"{MARKS[Kind.FILE]}.jsonl") -> Path:
    """The rows as a file that is named after somebody."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows()), encoding="utf-8")
    return path


@dataclass(frozen=True, kw_only=True)
class Secrets:
    """What to look for.

    Args:
        tokens: the tokens of each text.
        digests: in hexadecimal and decimal digits; any 12 and more of their first ones count.
        numbers: exact counts of the store.
        measured: exact measurements, such as losses.
    """

    tokens: tuple[tuple[int, ...], ...]
    digests: frozenset[str]
    numbers: frozenset[int]
    measured: frozenset[float] = frozenset()


def secrets_of(store: UserStore | None = None) -> Secrets:
    """The secrets of the planted people, and of the store that was made of them."""
    texts = [text for one in PEOPLE for text in one.texts]
    tokenizer = StoreTokenizer.load()
    digests = {
        hashlib.new(name, what).hexdigest()
        for name in ("md5", "sha1", "sha256", "blake2b")
        for what in [one.id.encode() for one in PEOPLE] + [text.encode() for text in texts]
    }
    numbers = {USERS, RECORDS}
    if store is not None:
        digests.add(store.meta.content_sha256)
        for split in ("train", "held-out-users", "held-out-examples"):
            part = store.split(split)
            numbers |= {len(part.counts), int(part.counts.sum()), int(part.token_counts.sum())}
    return Secrets(
        tokens=tuple(tuple(one) for one in tokenizer.encode(texts)),
        digests=frozenset(digests),
        numbers=frozenset(number for number in numbers if number > 100),
    )


def measured_in(*operator_files: Path) -> frozenset[float]:
    """Every number of files of the operator that is nowhere by chance."""
    found: set[float] = set()

    def walk(value: object) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                if key not in ("learning_rate", "l2_clip_norm", "time"):
                    walk(inner)
        elif isinstance(value, list):
            for inner in value:
                walk(inner)
        elif isinstance(value, float) and len(f"{value!r}".replace(".", "").strip("0")) >= 7:
            found.add(value)

    for path in operator_files:
        for line in path.read_text(encoding="utf-8").splitlines():
            walk(json.loads(line))
    return frozenset(found)
