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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from userdp.gradients.engines.engine import Task
from userdp.gradients.engines.uses import Form, choose_form
from userdp.gradients.modes import moved
from userdp.gradients.shards import local
from userdp.gradients.units import Units

_CPU_TOKENS = 1024

_STEP = 16
"""Widths are multiples of it, and of a quarter of the next power of two: rows of ordinary text are
padded by an eighth, and a cohort has few enough shapes to fill their passes."""

MOST_PLACES = 1024
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


def rows_per_pass(width: int, micro_batch: int, device: torch.device) -> int:
    """Rows to put in one pass: all that are allowed on an accelerator, fewer on a CPU.

    On a CPU a pass is fastest while its logits stay near the caches: 1,024 tokens keep the cores
    busy, and 64 rows of 128 tokens took 1.3 to 2 times as long, row for row, in plain training too.
    """
    if device.type != "cpu":
        return micro_batch
    return min(micro_batch, max(1, _CPU_TOKENS // max(1, width)))


def units_by_shape(
    units: Units, micro_batch: int, room: Callable[[int, int], int]
) -> dict[PassShape, list[int]]:
    """The numbers of the units that have rows, by the shape of their passes.

    Args:
        units: with or without rows.
        micro_batch: most rows of a pass; a unit that has more gets a pass for itself.
        room: by rows of a unit and width, for how many units there is memory.
    """
    assert units.host_lengths is not None
    counts, lengths = units.offsets.diff(), units.host_lengths
    longest = lengths.new_zeros(len(counts))
    owner = torch.repeat_interleave(torch.arange(len(counts)), counts)
    longest.scatter_reduce_(0, owner, lengths, "amax")
    alike: dict[tuple[int, int], list[int]] = defaultdict(list)
    most_wide = units.input_ids.shape[1]
    for unit, (rows, tokens) in enumerate(zip(counts.tolist(), longest.tolist(), strict=True)):
        if rows:
            alike[rows, min(padded_width(tokens), most_wide)].append(unit)
    found: dict[PassShape, list[int]] = {}
    for (rows, width), numbers in alike.items():
        together = rows_per_pass(width, micro_batch, units.lengths.device) // rows
        most = max(1, min(together, room(rows, width), MOST_PLACES))
        found[PassShape(most, rows, width)] = numbers
    return found


def passes_of(numbers: Sequence[int], shape: PassShape, places: Sequence[int]) -> list[Pass]:
    """The passes of these units, in an order that torch's generator draws.

    Args:
        numbers: of the units.
        shape: of their passes.
        places: that are used; at least one.
    """
    order = [numbers[place] for place in torch.randperm(len(numbers)).tolist()]
    taken = [tuple(order[at : at + len(places)]) for at in range(0, len(order), len(places))]
    return [Pass(each, tuple(places[: len(each)]), shape) for each in taken]


def most_units(task: Task, unit_bytes: int) -> int:
    """Units in a pass, so that there is memory for what is formed of each.

    Not what is free at the moment: passes of one run are cut alike, whoever else is on the device.
    Where that is too much they are halved (`engines.engine`).

    Args:
        task: whose parameters say how much memory that may be.
        unit_bytes: what is formed of one unit.
    """
    of_device = bytes_of_device(task.units.lengths.device)
    model = sum(local(p).nbytes for p in task.model.parameters())
    whole = sum(map(_bytes_of, task.parameters.values()))
    budget = max(FORMED_BYTES, of_device // 4, model, 4 * whole) // max(1, unit_bytes)
    return max(1, budget // (1 if task.item_clip_norm is None else 4))


def bytes_of_device(device: torch.device) -> int:
    """What an accelerator has and this process may take of it; 0 where that is not known."""
    if device.type != "cuda":
        return 0
    share = torch.cuda.get_per_process_memory_fraction(device)
    return int(torch.cuda.get_device_properties(device).total_memory * share)


def formed_bytes(task: Task, rows: int, width: int, *, every: bool) -> list[int]:
    """Memory for what is formed of one unit of this shape, by parameter.

    Nothing is formed of a matrix whose norms come from Gram matrices (`engines.uses`).

    Args:
        task: whose parameters they are.
        rows: of the unit.
        width: of each row.
        every: whether gradients of all matrices are formed.
    """
    positions, device = rows * width, task.units.input_ids.device.type

    def of_grams(p: Tensor) -> bool:
        if p.dim() != 2 or every:
            return False
        sides = {"p": p.shape[0], "q": p.shape[1]}
        form = choose_form(units=2, positions=positions, device=device, **sides)
        return form is Form.GHOST

    return [0 if of_grams(p) else _bytes_of(p) for p in task.parameters.values()]


def _bytes_of(parameter: Tensor) -> int:
    return parameter.numel() * max(4, parameter.element_size())
