"""Convolutions along positions."""

from __future__ import annotations

from userdp.gradients.certificate.places.place import CONSTANT, Call, Place, places


@places("conv1d")
def _conv1d(call: Call) -> Place | None:
    """(rows, channels, positions): each row for itself, with weights that are nobody's."""
    place = call.first
    if place is None or not call.rest_constant():
        return None
    if place.constant:
        return CONSTANT
    return place if place.dim == 0 and len(call.shape) == 3 else None
