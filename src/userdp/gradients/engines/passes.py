"""How a cohort is cut into passes of whole units."""

from __future__ import annotations

import torch
from torch import Tensor

from userdp.gradients.engines.engine import Task
from userdp.gradients.engines.forms import Form, choose_form
from userdp.gradients.engines.precision import reduced_products
from userdp.gradients.engines.uses import Layout
from userdp.gradients.shards import local
from userdp.gradients.units import Units

_CPU_TOKENS = 1024

FORMED_BYTES = 256 << 20
"""Memory for per-unit gradients, unless the model, or four times what trains of it, takes more; or
a quarter of what an accelerator has, where small passes cost more than memory does."""


def rows_per_pass(units: Units, micro_batch: int) -> int:
    """Rows to put in one pass: all that are allowed on an accelerator, fewer on a CPU.

    On a CPU a pass is fastest while its logits stay near the caches: 1,024 tokens keep the cores
    busy, and 64 rows of 128 tokens took 1.3 to 2 times as long, row for row, in plain training too.
    The number depends on the width of ``input_ids`` alone.
    """
    if units.input_ids.device.type != "cpu":
        return micro_batch
    return min(micro_batch, max(1, _CPU_TOKENS // max(1, units.input_ids.shape[1])))


def largest_passes(
    micro_batch: int, width: int, *, unit_rows: int, cut: bool
) -> list[tuple[int, int]]:
    """Rows and width of passes such that every pass has at most as many and as long ones as one.

    Widths are powers of two apart, so that the largest is about twice the largest pass.

    Args:
        micro_batch: most rows in one pass.
        width: most tokens of a row.
        unit_rows: most rows of a unit, which may be a pass of its own.
        cut: whether passes have as many rows as are fastest on a CPU (`rows_per_pass`).

    >>> largest_passes(64, 128, unit_rows=4, cut=True)
    [(15, 128), (31, 64), (60, 32), (64, 16)]
    >>> largest_passes(64, 128, unit_rows=4, cut=False)
    [(64, 128)]
    """
    sizes: list[tuple[int, int]] = []
    while width and (not sizes or sizes[-1][0] < micro_batch):
        most = _CPU_TOKENS // (width // 2 + 1) if cut else micro_batch
        sizes.append((min(micro_batch, max(most, unit_rows)), width))
        width //= 2
    return sizes


def passes(units: Units, *, rows: int, most_units: int) -> list[tuple[int, int]]:
    """Consecutive ranges of units with at most ``rows`` rows and ``most_units`` units each.

    A unit with more than ``rows`` rows is a range of its own. The cut depends on numbers of rows
    alone, never on what they say.
    """
    offsets = units.offsets.tolist()
    ranges: list[tuple[int, int]] = []
    begin = 0
    for end in range(1, len(offsets)):
        full = offsets[end] - offsets[begin] > rows or end - begin > most_units
        if full and end - 1 > begin:
            ranges.append((begin, end - 1))
            begin = end - 1
    if len(offsets) - 1 > begin:
        ranges.append((begin, len(offsets) - 1))
    return ranges


def most_units(task: Task, unit_bytes: int) -> int:
    """Units in a pass, so that there is memory for what is formed of each.

    Args:
        task: whose parameters say how much memory that may be.
        unit_bytes: what is formed of one unit.
    """
    model = sum(local(p).nbytes for p in task.model.parameters())
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


def formed_bytes(task: Task) -> list[int]:
    """Memory for what is formed of one unit, by parameter.

    Nothing is formed of a matrix whose norms come from Gram matrices, whichever units of the task
    share its pass: the longest of them decides (`engines.forms`). It depends on numbers of rows and
    the width of ``input_ids`` alone.
    """
    every = task.item_clip_norm is not None or reduced_products()
    offsets = task.units.offsets
    rows = int(offsets.diff().max()) if len(task.units) else 0
    positions = rows * task.units.input_ids.shape[1]
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


def moved(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host on ``device``, for which the host does not wait: by pinned memory."""
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)
