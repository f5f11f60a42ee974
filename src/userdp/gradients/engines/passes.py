r"""How a cohort is cut into passes of whole units: by what each unit is, not by who else is there.

A unit's **shape** is its number of rows and the width to which they are padded (`padded_width`).
All units of a pass have one shape, and every pass of a shape has as many places for units; where
they are too few, or places are not used (`engines.certify`), copies of the first one stand there
and count nothing. (Made-up rows might raise an error, or be no numbers, in a model that never meets
such rows.) So whatever depends on a pass's shape (which kernels run, in what order they add, which
form a layer takes) depends, for each unit, on that unit alone, on the width of ``input_ids`` and on
the settings of the run.

**In what order.** What is left of a pass is the rounding of its sum, which hangs on who is in it.
So the units of a shape have a random order, in secret randomness: take a unit out of it and put the
last one in its place, and what comes out is a uniform order of the others. Couple both worlds so,
and condition on the order (the hockey-stick divergence is jointly convex): one unit more or less
changes who is in two passes, and no other pass.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from userdp.gradients.engines.engine import Task
from userdp.gradients.engines.forms import Form, choose_form
from userdp.gradients.engines.uses import Layout
from userdp.gradients.modes import moved
from userdp.gradients.precision import reduced_products
from userdp.gradients.shards import local
from userdp.gradients.units import Units

_CPU_TOKENS = 1024

_STEP = 16
"""Widths are multiples of it, and of a quarter of the next power of two: rows of ordinary text are
padded by an eighth, and a cohort has few enough shapes to fill their passes."""

_MOST_PLACES = 1024
"""Units of a pass. The rounding of its float32 sum grows with them: without one of 8,192 units that
are alike it was 0.9e-3 C in one pass, of a margin of 1e-3."""

FORMED_BYTES = 256 << 20
"""Memory for per-unit gradients, unless the model, or four times what trains of it, takes more; or
a quarter of what an accelerator has, where small passes cost more than memory does."""


class PassShape(NamedTuple):
    """Of a pass: places for ``units`` of ``rows`` rows of ``width`` tokens each."""

    units: int
    rows: int
    width: int


@dataclass(frozen=True, slots=True)
class Pass:
    """Units that share a pass.

    Attributes:
        numbers: theirs in the task.
        places: theirs in the pass.
        shape: of the pass.
    """

    numbers: tuple[int, ...]
    places: tuple[int, ...]
    shape: PassShape

    def of(self, units: Units) -> Units:
        """The rows of the pass: the first unit stands in all places that are nobody's.

        Args:
            units: of the task.
        """
        shape = self.shape
        numbers = [self.numbers[0]] * shape.units
        for number, place in zip(self.numbers, self.places, strict=True):
            numbers[place] = number
        index = (units.offsets[numbers][:, None] + torch.arange(shape.rows)).flatten()
        assert units.host_lengths is not None
        lengths, device = units.host_lengths[index], units.lengths.device
        index, targets = moved(index, device), units.targets
        return Units(
            input_ids=_as_wide(units.input_ids[index], shape.width),
            lengths=moved(lengths, device),
            offsets=torch.arange(shape.units + 1) * shape.rows,
            targets=None if targets is None else _as_wide(targets[index], shape.width),
            host_lengths=lengths,
        )


def _as_wide(rows: Tensor, width: int) -> Tensor:
    """``rows`` cut or padded to ``width``."""
    missing = width - rows.shape[1]
    return rows[:, :width] if missing <= 0 else F.pad(rows, (0, missing))


def padded_width(tokens: int) -> int:
    """The width to which a row of so many tokens is padded.

    >>> [padded_width(tokens) for tokens in (0, 3, 8, 9, 64, 65, 100, 128, 130)]
    [16, 16, 16, 16, 64, 96, 128, 128, 192]
    """
    step = max(_STEP, (1 << max(0, tokens - 1).bit_length()) // 4)
    return max(step, -(-tokens // step) * step)


def widths(most: int) -> Iterator[int]:
    """All widths to which rows are padded where none is wider than ``most``.

    >>> list(widths(100)), list(widths(16)), list(widths(0))
    ([16, 32, 48, 64, 96, 100], [16], [0])
    """
    width = padded_width(0)
    while width < most:
        yield width
        width = padded_width(width + 1)
    yield most


def rows_per_pass(width: int, micro_batch: int, device: torch.device) -> int:
    """Rows to put in one pass: all that are allowed on an accelerator, fewer on a CPU.

    On a CPU a pass is fastest while its logits stay near the caches: 1,024 tokens keep the cores
    busy, and 64 rows of 128 tokens took 1.3 to 2 times as long, row for row, in plain training too.
    """
    if device.type != "cpu":
        return micro_batch
    return min(micro_batch, max(1, _CPU_TOKENS // max(1, width)))


def largest_passes(
    micro_batch: int, width: int, *, unit_rows: int, cut: bool
) -> list[tuple[int, int]]:
    """Rows and width of passes such that every pass has at most as many and as long ones as one.

    None is larger than such a pass may be: the question must not decide how much memory training
    needs.

    Args:
        micro_batch: most rows in one pass.
        width: most tokens of a row.
        unit_rows: most rows of a unit, which may be a pass of its own.
        cut: whether passes have as many rows as are fastest on a CPU (`rows_per_pass`).

    >>> largest_passes(64, 128, unit_rows=4, cut=True)
    [(8, 128), (10, 96), (16, 64), (21, 48), (32, 32), (64, 16)]
    >>> largest_passes(64, 128, unit_rows=4, cut=False)
    [(64, 128)]
    """
    sizes: list[tuple[int, int]] = []
    for one in sorted(filter(None, widths(width)), reverse=True):
        most = max(unit_rows, _CPU_TOKENS // one) if cut else micro_batch
        rows = min(micro_batch, most)
        if not sizes or rows > sizes[-1][0]:
            sizes.append((rows, one))
    return sizes


def passes(
    units: Units,
    *,
    micro_batch: int,
    most_units: Callable[[int, int], int],
    places_of: Callable[[PassShape], tuple[int, ...]] | None = None,
    most_rows: Callable[[int, int, torch.device], int] | None = None,
) -> tuple[list[Pass], list[int]]:
    """The passes of some units.

    Args:
        units: with or without rows; those of none are in no pass.
        micro_batch: most rows of a pass.
        most_units: by rows of a unit and width, for how many units there is memory.
        places_of: which places of a shape are used; none leaves its units alone. All by default.
        most_rows: of a pass; `rows_per_pass` where nothing is said.

    Returns:
        The passes, in an order that torch's generator draws; and the units that have passes of
        their own.
    """
    assert units.host_lengths is not None
    counts, lengths = units.offsets.diff(), units.host_lengths
    longest = lengths.new_zeros(len(counts))
    owner = torch.repeat_interleave(torch.arange(len(counts)), counts)
    longest.scatter_reduce_(0, owner, lengths, "amax")
    by_shape: dict[tuple[int, int], list[int]] = defaultdict(list)
    alone: list[int] = []
    most_wide = units.input_ids.shape[1]
    for unit, (rows, tokens) in enumerate(zip(counts.tolist(), longest.tolist(), strict=True)):
        if rows > micro_batch:
            alone.append(unit)
        elif rows:
            by_shape[rows, min(padded_width(tokens), most_wide)].append(unit)
    cut: list[Pass] = []
    for (rows, width), numbers in by_shape.items():
        together = (most_rows or rows_per_pass)(width, micro_batch, units.lengths.device) // rows
        most = max(1, min(together, most_units(rows, width), _MOST_PLACES))
        shape = PassShape(most, rows, width)
        places = tuple(range(most)) if places_of is None else places_of(shape)
        if not places:
            alone += numbers
            continue
        numbers = _in_random_order(numbers)
        for begin in range(0, len(numbers), len(places)):
            taken = tuple(numbers[begin : begin + len(places)])
            cut.append(Pass(taken, places[: len(taken)], shape))
    return cut, alone


def _in_random_order(numbers: list[int]) -> list[int]:
    return [numbers[place] for place in torch.randperm(len(numbers)).tolist()]


def most_units(task: Task, unit_bytes: int) -> int:
    """Units in a pass, so that there is memory for what is formed of each.

    Args:
        task: whose parameters say how much memory that may be.
        unit_bytes: what is formed of one unit.
    """
    model = sum(local(p).nbytes for p in task.everything)
    least = max(FORMED_BYTES, device_bytes(task.units.lengths.device) // 4)
    budget = max(least, model, 4 * whole_bytes(task)) // max(1, unit_bytes)
    return max(1, budget // (1 if task.item_clip_norm is None else 4))


def device_bytes(device: torch.device) -> int:
    """What an accelerator has and this process may take of it; 0 where that is not known.

    Not what is free at the moment: passes of one run are cut alike, whoever else is on the device.
    Where that is too much they are halved (`engines.room`).
    """
    if device.type != "cuda":
        return 0
    share = torch.cuda.get_per_process_memory_fraction(device)
    return int(torch.cuda.get_device_properties(device).total_memory * share)


def whole_bytes(task: Task) -> int:
    """Memory of one unit's gradient."""
    return sum(map(_bytes_of, task.parameters.values()))


def formed_bytes(task: Task, rows: int, width: int) -> list[int]:
    """Memory for what is formed of one unit of this shape, by parameter.

    Nothing is formed of a matrix whose norms come from Gram matrices (`engines.forms`).

    Args:
        task: whose parameters they are.
        rows: of the unit.
        width: of each row.
    """
    every = task.item_clip_norm is not None or reduced_products()
    positions = rows * width
    device = task.units.input_ids.device.type
    return [
        0 if not every and _of_grams(p, positions, device) else _bytes_of(p)
        for p in task.parameters.values()
    ]


def _of_grams(parameter: Tensor, positions: int, device: str) -> bool:
    if parameter.dim() != 2:
        return False
    p, q = parameter.shape
    form = choose_form(units=2, positions=2 * positions, p=p, q=q, device=device)
    return form is Form.GHOST


def _bytes_of(parameter: Tensor) -> int:
    return parameter.numel() * max(4, parameter.element_size())


def layout_of(units: Units, *, by_row: bool = False) -> Layout:
    """Which unit owns which row; ``by_row`` makes each row a unit of its own."""
    rows = int(units.offsets[-1])
    if by_row:
        return Layout(
            bounds=tuple(range(rows + 1)),
            unit_of_row=torch.arange(rows, device=units.lengths.device),
        )
    counts = units.offsets.diff()
    owner = torch.repeat_interleave(torch.arange(len(units)), counts)
    owner = moved(owner, units.lengths.device)
    return Layout(bounds=tuple(units.offsets.tolist()), unit_of_row=owner)
