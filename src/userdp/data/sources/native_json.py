"""Blocks of JSON Lines to columns by Arrow's parser, where it is certain to agree with Python's.

Arrow reads a block fifty times faster than `json.loads` reads its lines, but is laxer here and
stricter there. So a block is given to it only if it is plainly regular, and goes to Python whole
otherwise, which decides what each line is. Regular means:

* valid UTF-8 (Arrow does not look into fields that it leaves out);
* each line begins with ``{`` and ends with ``}`` (and perhaps a carriage return), and Arrow finds
  as many objects as lines. Then each line is one object: no raw line end can stand in a string, and
  between a ``}`` outside of strings and a ``{`` no object goes on;
* no ``-NaN`` or bare ``Inf``, which Arrow takes for numbers and Python does not;
* no run of digits, and no line with so many brackets, that Python might refuse it (its limits on
  the digits of a number, `sys.set_int_max_str_digits`, and on recursion);
* the fields asked for are strings or null throughout, or the users whole numbers of 64 bits. Arrow
  itself refuses fields that occur twice, and halves of surrogate pairs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import IO

import numpy as np
import pyarrow as pa
import pyarrow.json as pj
from numpy.typing import NDArray

BLOCK = 2**22
_NEWLINE, _RETURN, _OPEN, _CLOSE = b"\n\r{}"
_INFINITE = re.compile(rb"Inf[\s,}\]]")
_DIGITS_FROM, _DIGITS = 640, re.compile(rb"[0-9]{640}")  # the least limit that Python can have
_NESTED_FROM, _NESTED = 400, 200
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"')


def whole_lines(content: IO[bytes], size: int = BLOCK) -> Iterator[bytes]:
    """A file in blocks of whole lines, of about ``size`` bytes or one line."""
    parts: list[bytes] = []
    while block := content.read(size):
        end = block.rfind(b"\n") + 1
        if end == 0:
            parts.append(block)
            continue
        yield b"".join([*parts, block[:end]]) if parts else block[:end]
        parts = [block[end:]] if end < len(block) else []
    if parts:
        yield b"".join(parts)


class NativeLines:
    """Blocks of lines to record batches with ``fields`` as columns, or None.

    Args:
        fields: the user's first; none twice.
    """

    def __init__(self, fields: tuple[str, ...]) -> None:
        texts = pa.schema([(name, pa.string()) for name in fields])
        numbers = pa.schema([(fields[0], pa.int64()), *list(texts)[1:]])
        self._schemas = [texts, numbers] if len(set(fields)) == len(fields) else []

    def __call__(self, block: bytes) -> pa.RecordBatch | None:
        """The rows of a block; None if it must be read line by line."""
        lines = _regular_lines(block)
        if not lines:
            return None
        for schema in self._schemas:
            try:
                table = pj.read_json(
                    pa.BufferReader(block),
                    read_options=pj.ReadOptions(use_threads=False, block_size=len(block) + 1),
                    parse_options=pj.ParseOptions(
                        explicit_schema=schema, unexpected_field_behavior="ignore"
                    ),
                )
            except (pa.ArrowException, UnicodeDecodeError):
                continue
            if table.num_rows != lines:
                return None
            (batch,) = table.combine_chunks().to_batches()
            return batch
        return None


def _regular_lines(block: bytes) -> int:
    """How many lines a regular block has; 0 if it is not regular."""
    values = np.frombuffer(block, dtype=np.uint8)
    ends = np.flatnonzero(values == _NEWLINE)
    if not block.endswith(b"\n"):
        ends = np.append(ends, len(values))
    starts = np.concatenate([[0], ends[:-1] + 1])
    sizes = ends - starts
    if not len(sizes) or sizes.min() < 2:
        return 0
    last = ends - 1
    last = last - (values[last] == _RETURN)
    if not ((values[starts] == _OPEN).all() and (values[last] == _CLOSE).all()):
        return 0
    if not (block.isascii() or _decodes(block)):
        return 0
    if b"-NaN" in block or (b"Inf" in block and _INFINITE.search(block)):
        return 0
    longest = sizes.max()
    if longest >= _DIGITS_FROM and _maybe_digits(values) and _DIGITS.search(block):
        return 0
    if longest >= _NESTED_FROM:
        for row in np.flatnonzero(sizes >= _NESTED_FROM).tolist():
            line = (starts[row], ends[row])
            if (
                _brackets(block, *line) > _NESTED
                and _brackets(_bare(block[slice(*line)])) > _NESTED
            ):
                return 0
    return len(ends)


def _maybe_digits(values: NDArray[np.uint8]) -> bool:
    """False only if no run of `_DIGITS_FROM` digits is there; looks at each 64th byte."""
    some = values[::64]
    digits = run = (some >= ord("0")) & (some <= ord("9"))
    for _ in range(_DIGITS_FROM // 64 - 2):  # a run covers nine of them or more
        run = run[:-1] & digits[len(digits) - len(run) + 1 :]
    return bool(run.any())


def _brackets(content: bytes, *within: int) -> int:
    return content.count(b"{", *within) + content.count(b"[", *within)


def _bare(line: bytes) -> bytes:
    """What stands outside of strings, if the line is JSON; if it is not, Arrow will say so."""
    return _STRING.sub(b"", line)


def _decodes(block: bytes) -> bool:
    try:
        block.decode()
    except UnicodeDecodeError:
        return False
    return True
