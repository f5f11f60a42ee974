"""The memory of a small step, operation by operation, made into the peak of a large one.

While an operation runs there are so many bytes, a number that is linear in layers, units and
passes. The most of all operations is not: in a small model it may be the table's gradient, in a
deep one what its layers keep. So operations of two small steps are lined up, each is followed along
its own line, and the most is taken of what these say.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from typing import TypeAlias

from userdp.gradients.cost.recording import Op

Life: TypeAlias = tuple[tuple[str, ...], float]
"""The segments of an operation, and the bytes that there were meanwhile."""

Track: TypeAlias = list[tuple[str, float]]
"""Operations of a segment, in order: their names, and the bytes that there were meanwhile."""

_FILLED = "backward first"
"""The segment by whose end buffers for per-unit gradients are filled."""

_LAST = "backward last"

_IN_A_ROW = 8
"""Operations of the same names in two tracks that are taken for the same ones, at least."""


def peak_of(
    low: Mapping[str, Track], high: Mapping[str, Track], deeper: int, *, kept: float
) -> float:
    """Bytes at the peak of a model with ``deeper`` more layers than one.

    Args:
        low: tracks of a model of one layer.
        high: of two.
        deeper: layers.
        kept: bytes of buffers for per-unit gradients that a pass leaves to the next one. Those of
            one layer are few and would all be kept; those of all layers are kept up to a limit, and
            lie beside its activations till they are filled.
    """
    # A segment without an operation that reads weights belongs to the one before it.
    both = low.keys() & high.keys()
    # A lone layer's goes on to the sum: only the first layer's does so in a deeper model.
    shorter = {key: low[key][: len(high[key])] for key in both if key.startswith(_LAST)}
    low = {**low, **shorter}
    return max(
        size + (0 if key.startswith(_FILLED) else kept)
        for key in both
        for _, size in beyond(low[key], high[key], deeper)
    )


def matched(low: Sequence[Op], high: Sequence[Op]) -> Sequence[tuple[str, int, int, int, int]]:
    """Which operations of both are the same ones; as of `difflib.SequenceMatcher`."""
    names = [op.name for op in low], [op.name for op in high]
    return SequenceMatcher(None, *names, autojunk=False).get_opcodes()


def tracks_of(ops: Sequence[Op], lives: Sequence[Life]) -> dict[str, Track]:
    """The track of each segment, of operations and what there was while each ran."""
    tracks: dict[str, Track] = defaultdict(list)
    for op, (segments, size) in zip(ops, lives, strict=True):
        for segment in segments:
            tracks[segment].append((op.name, size))
    return dict(tracks)


def beyond(low: Track, high: Track, more: int) -> Track:
    """The track at ``more`` above ``low``, of which ``high`` is at one.

    Operations that only one of both has, such as those of a further unit, grow as the one before
    them does; also those that a few names in a row alone would make the same.
    """
    names = [name for name, _ in low], [name for name, _ in high]
    if names[0] == names[1]:
        pairs = zip(low, high, strict=True)
        return [(name, size + more * (beyond - size)) for (name, size), (_, beyond) in pairs]
    track: Track = []
    slope = 0.0
    matched = SequenceMatcher(None, *names, autojunk=False)
    for kind, begin, end, first, last in matched.get_opcodes():
        if kind == "equal" and end - begin >= _IN_A_ROW:
            track += beyond(low[begin:end], high[first:last], more)
            slope = high[last - 1][1] - low[end - 1][1]
        else:
            track += [(name, size + more * slope) for name, size in low[begin:end]]
            track += [(name, size + (more - 1) * slope) for name, size in high[first:last]]
    return track
