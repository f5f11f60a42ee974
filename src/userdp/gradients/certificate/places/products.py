"""Products of matrices, and attention."""

from __future__ import annotations

from torch import Tensor

from userdp.gradients.certificate.places.place import CONSTANT, Call, Place, places


@places("matmul bmm mm __matmul__")
def _matmul(call: Call) -> Place | None:
    """(..., n, p) @ (..., p, q)."""
    return _of_product(call, call.args[0], call.args[1]) if len(call.args) == 2 else None


@places("addmm baddbmm")
def _addmm(call: Call) -> Place | None:
    """``bias + x @ weight``; ``baddbmm`` too."""
    left = call.argument(1, "mat1", call.kwargs.get("batch1"))
    right = call.argument(2, "mat2", call.kwargs.get("batch2"))
    if len(call.args) > 3:  # numbers before the matrices, as of old
        return None
    if call.first is None or not isinstance(left, Tensor) or not isinstance(right, Tensor):
        return None
    place = _of_product(call, left, right)
    bias = call.joined(call.args[:1], call.result.dim())
    if place is None or bias is None:
        return None
    if place.constant or bias.constant:
        return bias if place.constant else place
    return place if place == bias else None


def _of_product(call: Call, left: Tensor, right: Tensor) -> Place | None:
    """Rows among the batch dimensions; or, beside a constant, as n or as q."""
    one, two = call.place(left), call.place(right)
    if one is None or two is None:
        return None
    if one.constant and two.constant:
        return CONSTANT
    if left.dim() < 2 or right.dim() < 2:
        return None
    places_of_rows: set[Place] = set()
    for place, tensor, contracted in ((one, left, -1), (two, right, -2)):
        if place.dim is None or place.counts:
            continue
        from_end = place.dim - tensor.dim()
        if from_end == contracted or (from_end >= -2 and not (one.constant or two.constant)):
            return None
        places_of_rows.add(Place(call.result.dim() + from_end, place.inner))
    return places_of_rows.pop() if len(places_of_rows) == 1 else None


@places("linalg_solve_triangular", "solve_triangular")
def _solved(call: Call) -> Place | None:
    """Systems of equations of (..., n, n) and (..., n, k): rows among the batch dimensions."""
    dims = call.result.dim()
    place = call.joined(call.values, dims)
    if place is None or place.dim is None:
        return place
    return place if place.dim < dims - 2 else None


@places("einsum")
def _einsum(call: Call) -> Place | None:
    """One letter for the rows, in every operand that has any, and in the result."""
    equation, operands = call.args[0], call.args[1:]
    if len(operands) == 1 and isinstance(operands[0], tuple | list):
        operands = tuple(operands[0])
    if not isinstance(equation, str) or "..." in equation or "->" not in equation:
        return None
    given, _, made = equation.replace(" ", "").partition("->")
    found: set[tuple[str, int]] = set()
    for letters, operand in zip(given.split(","), operands, strict=True):
        place = call.place(operand)
        if place is None or len(set(letters)) < len(letters):  # a diagonal
            return None
        if not place.constant and place.dim is not None:
            found.add((letters[place.dim], place.inner))
    if not found:
        return CONSTANT
    letter, inner = found.pop()
    return Place(made.index(letter), inner) if not found and letter in made else None


@places("scaled_dot_product_attention")
def _attention(call: Call) -> Place | None:
    """Queries, keys and values of (..., positions, width): rows among the batch dimensions."""
    if len(call.args) < 3:
        return None
    dims = call.result.dim()
    places = {call.joined((tensor,), dims) for tensor in call.args[:3]}
    mask = call.joined((call.argument(3, "attn_mask"),), dims)
    place = places.pop()
    if places or place is None or place.dim is None:
        return None
    return place if place.dim < dims - 2 and mask in (CONSTANT, place) else None
