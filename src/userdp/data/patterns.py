"""Find many strings of bytes in much data, at about memory's speed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

KEY = 8
"""Fewest bytes of a pattern: it is found by its first eight."""

_TABLE_BITS = 20
_MIX = np.uint64(0x9E3779B97F4A7C15)  # spreads keys over the table (Knuth's multiplicative hash)
_AT_ONCE = 2**22


class Patterns:
    """Strings of bytes to look for.

    Args:
        patterns: each of at least `KEY` bytes; the same one twice counts once.
    """

    def __init__(self, patterns: Iterable[bytes]) -> None:
        self._held: dict[int, list[bytes]] = {}
        for pattern in set(patterns):
            assert len(pattern) >= KEY, "a pattern is found by its first eight bytes"
            key = int.from_bytes(pattern[:KEY], "little")
            self._held.setdefault(key, []).append(pattern)
        self._keys = np.array(sorted(self._held), dtype=np.uint64)
        self._table = np.zeros(2**_TABLE_BITS, dtype=bool)
        self._table[self._slots(self._keys)] = True
        self.longest = max((len(one) for held in self._held.values() for one in held), default=0)

    def __len__(self) -> int:
        return sum(map(len, self._held.values()))

    def find(self, data: Any) -> Iterator[tuple[int, bytes]]:
        """Where in ``data`` (bytes, or what shares its memory) a pattern begins, and which."""
        view = memoryview(data).cast("B")
        if not len(self._keys):
            return
        for begin in range(0, max(len(view) - KEY + 1, 0), _AT_ONCE):
            part = view[begin : begin + _AT_ONCE + KEY - 1]
            for offset in range(KEY):
                count = (len(part) - offset) // KEY
                if not count:
                    continue
                words = np.frombuffer(part, dtype="<u8", count=count, offset=offset)
                near = np.flatnonzero(self._table[self._slots(words)])
                for place in near[np.isin(words[near], self._keys)].tolist():
                    at = begin + offset + KEY * place
                    for pattern in self._held[int(words[place])]:
                        if view[at : at + len(pattern)] == pattern:
                            yield at, pattern

    @staticmethod
    def _slots(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
        slots: NDArray[np.uint64] = (words * _MIX) >> np.uint64(64 - _TABLE_BITS)
        return slots
