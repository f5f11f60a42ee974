"""A generated corpus with Stack Overflow's shape."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

PAPER_RECORDS, PAPER_USERS, MEDIAN, MOST = 135_818_730, 342_477, 183, 194_200
SENTENCES = 2**15
WORDS_PER_TEXT = 12  # 26 tokens on average


def examples_per_user(records: int, seed: int = 0) -> NDArray[np.int64]:
    """Records of each user: Stack Overflow's shape, adding up to ``records``."""
    draw = np.random.default_rng(seed)
    users = max(3, round(records * PAPER_USERS / PAPER_RECORDS))
    mean = PAPER_RECORDS / PAPER_USERS
    counts = draw.lognormal(np.log(MEDIAN), np.sqrt(2 * np.log(mean / MEDIAN)), users)
    counts = np.clip(np.rint(counts * records / counts.sum()), 1, MOST).astype(np.int64)
    while (off := records - int(counts.sum())) != 0:  # rounding, spread over random users
        some = draw.integers(0, users, min(abs(off), users))
        np.add.at(counts, some, np.sign(off))
        counts = np.clip(counts, 1, MOST)
    return counts


def sentences(seed: int = 0, *, words_per_text: int = WORDS_PER_TEXT) -> list[bytes]:
    """JSON strings of real words; lengths log-normal around the median, a few reach 128 tokens."""
    import pydoc_data.topics

    words = " ".join(pydoc_data.topics.topics.values()).split()
    draw = np.random.default_rng(seed)
    sizes = np.clip(np.rint(draw.lognormal(np.log(words_per_text), 0.7, SENTENCES)), 1, 100).astype(
        int
    )
    starts = draw.integers(0, len(words) - 128, SENTENCES)
    texts = [
        " ".join(words[a : a + n]) for a, n in zip(starts.tolist(), sizes.tolist(), strict=True)
    ]
    return [json.dumps(text).encode() for text in texts]


def write_corpus(
    path: Path, records: int, seed: int = 0, *, words_per_text: int = WORDS_PER_TEXT
) -> int:
    """JSON Lines, users mixed as in a dump by time; returns bytes."""
    draw = np.random.default_rng(seed)
    owner = np.repeat(np.arange(len(counts := examples_per_user(records))), counts).astype(np.int32)
    draw.shuffle(owner)
    texts = sentences(words_per_text=words_per_text)
    with path.open("wb", buffering=2**22) as file:
        for begin in range(0, records, 2**17):
            part = owner[begin : begin + 2**17].tolist()
            which = draw.integers(0, SENTENCES, len(part)).tolist()
            file.write(
                b"".join(
                    b'{"user":"so%d","text":%b}\n' % (user, texts[text])
                    for user, text in zip(part, which, strict=True)
                )
            )
    return path.stat().st_size
