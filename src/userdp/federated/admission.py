"""Which of a silo's items take part in a federation; all others count as absent.

The server and the other silos see whether a silo answers. So nothing that a silo answers, refusals
included, may depend on what its items hold: an item that the model cannot read (a class that it
does not have, a token beyond its vocabulary) is left out, and told to the silo's operator alone.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from userdp.errors import UseError
from userdp.federated.data import SubjectItems
from userdp.federated.plan import FederationPlan, ModelKind, ModelSpec

BRIGHTEST = 255
"""The largest value of a pixel; the least is 0."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Absent:
    """How many items of a silo do not take part, and why; operator-only.

    Args:
        unreadable: they hold a class, a token, a pixel or a length that the model does not have.
        over_the_cap: their subject has ``group_size`` others.
    """

    unreadable: int = 0
    over_the_cap: int = 0

    def to_dict(self) -> dict[str, int]:
        """As plain values, for the operator's file."""
        return asdict(self)


def admit(
    plan: FederationPlan, data: SubjectItems, *, own_model: bool = False
) -> tuple[SubjectItems, Absent]:
    """The items that take part, each subject's first ``group_size`` readable ones in their order.

    Guarantee: whether an item takes part is a function of the plan, of the item, and of the same
    subject's items before it. Hence taking a subject away takes away that subject's items and no
    other: neighbouring silos stay neighbours, with at most ``group_size`` items of a subject, which
    is all that the price asks for. No content of an item raises anything.

    Args:
        plan: its model says what can be read, and its ``group_size`` is the cap (none under
            ``paper``, which claims nothing).
        data: what the silo holds.
        own_model: the model is not the plan's, so that only the cap is known.
    """
    readable = np.ones(data.items, dtype=bool) if own_model else readable_items(plan.model, data)
    kept = _only_tokens(data.take(np.flatnonzero(readable)), None if own_model else plan.model)
    unreadable = data.items - kept.items
    if plan.paper or not kept.items:
        return kept, Absent(unreadable=unreadable)
    first = np.concatenate([[0], np.cumsum(kept.counts)[:-1]])
    ranks = np.arange(kept.items) - first[kept.subjects]
    capped = kept.take(np.flatnonzero(ranks < plan.group_size))
    return capped, Absent(unreadable=unreadable, over_the_cap=kept.items - capped.items)


def readable_items(model: ModelSpec, data: SubjectItems) -> NDArray[np.bool_]:
    """Which items the model can compute a loss of: bool, (items,), each by that item alone.

    For images: pixels in 0 … 255 and a class below ``model.outputs``. For text: a length of at
    most the row's width, and token numbers below ``model.outputs`` as far as the length goes.
    """
    rows, lengths = data.rows, data.lengths
    if model.kind is ModelKind.CNN:
        pixels, labels = rows[:, :-1], rows[:, -1]
        bright = ((pixels >= 0) & (pixels <= BRIGHTEST)).all(axis=1)
        return np.asarray(
            bright
            & (labels >= 0)
            & (labels < model.outputs)
            & (lengths >= 0)
            & (lengths <= rows.shape[1])
        )
    counted = _counted(data)
    known = (rows >= 0) & (rows < model.outputs)
    return np.asarray((known | ~counted).all(axis=1) & (lengths >= 0) & (lengths <= rows.shape[1]))


def require_width(model: ModelSpec, data: SubjectItems) -> None:
    """Refuse rows of a width that is not the model's.

    All rows of a file have one width, whoever is in it: this refusal depends on how the file was
    made, and not on what anybody's items hold, so that others may see it.

    Raises:
        UseError: the rows are of another model's width.
    """
    width = data.rows.shape[1]
    if model.kind is ModelKind.CNN:
        fits, wanted = width == model.inputs**2 + 1, f"{model.inputs**2 + 1}"
    elif model.kind is ModelKind.LSTM:
        fits, wanted = width >= 2, "at least 2"
    else:
        fits, wanted = 1 <= width <= model.inputs, f"at most {model.inputs}"
    if not fits:
        raise UseError(
            f"the silo's rows are {width} numbers wide, and the plan's model reads {wanted}",
            hint="make the silo's items again for this federation's model",
        )


def _counted(data: SubjectItems) -> NDArray[np.bool_]:
    """Which places of the rows are tokens, and which are what stands beyond a row's length."""
    return np.asarray(np.arange(data.rows.shape[1])[None, :] < data.lengths[:, None])


def _only_tokens(data: SubjectItems, model: ModelSpec | None) -> SubjectItems:
    """Text with zeros beyond each row's length: models embed those places, though no loss does."""
    if model is None or model.kind is ModelKind.CNN:
        return data
    return SubjectItems(
        rows=np.where(_counted(data), data.rows, 0),
        lengths=data.lengths,
        subjects=data.subjects,
    )
