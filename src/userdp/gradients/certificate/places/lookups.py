"""Look-ups: embeddings, indexing, gathering."""

from __future__ import annotations

from collections.abc import Sequence
from types import EllipsisType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from userdp.gradients.certificate.places.place import (
    CONSTANT,
    FIRST,
    Call,
    Place,
    calls_of,
    no_count,
    places,
)


@places("gather")
def _gather(call: Call) -> Place | None:
    """``out[r, i] = x[r, index[r, i]]``: each row looks into itself."""
    index, dim = call.argument(2, "index"), call.dim(1)
    if call.first is None or dim is None or not isinstance(index, Tensor):
        return None
    place = call.joined((call.args[0], index), call.result.dim())
    return None if place is None or dim == place.dim else place


@calls_of(F.embedding)  # that of torch has its arguments the other way round
def _embedding(call: Call) -> Place | None:
    if call.argument(3, "max_norm") is not None:  # writes to the table
        return None
    return no_count(call.first) if call.rest_constant() else None


@places("one_hot")
def _one_hot(call: Call) -> Place | None:
    classes = call.argument(1, "num_classes", -1)
    return no_count(call.first) if isinstance(classes, int) and classes > 0 else None


@places("__getitem__")
def _getitem(call: Call) -> Place | None:
    tensor, index = call.args
    entries = index if isinstance(index, tuple) else (index,)
    if not all(
        entry is None
        or isinstance(entry, Tensor | slice | EllipsisType)
        or (isinstance(entry, int) and not isinstance(entry, bool))
        or _numbers(entry)
        for entry in entries
    ):
        return None
    lists = sum(isinstance(entry, list) for entry in entries)
    if lists and (lists > 1 or any(isinstance(entry, Tensor | int) for entry in entries)):
        return None
    bounds = [b for e in entries if isinstance(e, slice) for b in (e.start, e.stop, e.step)]
    if any(isinstance(bound, Tensor) for bound in bounds):
        return None
    if any(isinstance(entry, Tensor) for entry in entries):
        return _looked_up(call, entries)
    return sliced(call.first, tensor.shape, entries)


def _numbers(entry: object) -> bool:
    """Whether ``entry`` is a list of indices; alone among slices, it leaves a dimension there."""
    return isinstance(entry, list) and all(
        isinstance(number, int) and not isinstance(number, bool) for number in entry
    )


def sliced(place: Place | None, shape: Sequence[int], entries: Sequence[Any]) -> Place | None:
    """Slices, numbers, new dimensions: the dimension that counts must stay whole."""
    if place is None or place.dim is None:
        return place
    real = sum(entry is not None and entry is not Ellipsis for entry in entries)
    full: list[Any] = []
    for entry in entries:
        full += [slice(None)] * (len(shape) - real) if entry is Ellipsis else [entry]
    full += [slice(None)] * (len(shape) - sum(entry is not None for entry in full))
    before = after = 0
    for entry in full:
        if entry is None:
            after += 1
            continue
        if before == place.dim:
            size = shape[before]
            if isinstance(entry, slice) and entry.indices(size) == (0, size, 1):
                return place._replace(dim=after)
            return CONSTANT if place.counts else None
        before += 1
        after += isinstance(entry, slice | list)
    return None


def _looked_up(call: Call, entries: Sequence[Any]) -> Place | None:
    """Indexing by tensors: into a constant; each row into itself; all rows at the same places."""
    tensors = [entry for entry in entries if isinstance(entry, Tensor)]
    if call.first is None or any(t.dtype in (torch.bool, torch.uint8) for t in tensors):
        return None
    dims = max(t.dim() for t in tensors)
    index = call.joined(tensors, dims)
    together = all(isinstance(entry, Tensor | int) for entry in entries)
    if call.first.constant:
        if index is None or index.constant:
            return index
        return index if together else None
    if call.first != FIRST:
        return None
    if together and isinstance(entries[0], Tensor):  # x[arange(rows), ...]: index r, row r
        head = call.place(entries[0])
        if head is None or head.dim is None or not head.counts:
            return None
        where = Place(head.dim + dims - entries[0].dim())
        return where if call.joined(tensors[1:], dims) in (CONSTANT, where) else None
    whole = isinstance(entries[0], slice) and entries[0] == slice(None)
    same = index is not None and index.constant
    return FIRST if whole and same and len(entries) == 2 else None
