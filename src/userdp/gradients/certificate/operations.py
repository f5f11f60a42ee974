r"""What torch's operations, and some whole functions, make of places: the rules of the proof.

A **rule** tells the place of a result. It may answer with one only if, *for every value of the
arguments*, an element of row r in the result is a function of constants and of the arguments'
elements of row r. There are few kinds:

================  ==========================================================================
elementwise       what torch itself calls pointwise: arguments, broadcast, agree in one place
reshaped          the same numbers in the same order, under another shape
moved             dimensions in another order
along             f of some dimensions, each index of the others for itself: the dimension of
                  rows is none of them
cut               a part of a dimension, which is whole where it counts rows
products          rows among the dimensions that are not summed over
looked up         into a constant by rows' indices; or each row into itself
================  ==========================================================================

What is made of constants alone is constant, unless coins were thrown or its memory is not filled. A
**step** makes a jump of its arguments' last bits, as a router's choice does. In a batch, the last
bits of a row's numbers hang on who else is there, and a step turns a last bit into anything, which
no margin of the clip covers: so a step of rows' real numbers has no place. Steps are results that
are not of real numbers, made of some (a comparison, indices of ``topk``, a cast to integers), and
`JUMPS`. Slopes that jump, as that of a ReLU, are none: a last bit changes one number's part.

*Assumed:* torch's operations do what their documentation says, and are tagged as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from userdp.gradients.certificate.places import (
    CONSTANT,
    FIRST,
    Call,
    Place,
    joined,
    regrouped,
    tensors_in,
)
from userdp.gradients.losses import token_losses

Rule: TypeAlias = Callable[[Call], Place | None]

PLACES: dict[str, Rule] = {}
"""The rules, by operations' names; `elementwise` is that of all that torch calls pointwise."""


def places(names: str) -> Callable[[Rule], Rule]:
    """Register a rule for operations of these names."""

    def register(rule: Rule) -> Rule:
        PLACES.update(dict.fromkeys(names.split(), rule))
        return rule

    return register


JUMPS = (
    "round floor ceil trunc fix frac sign sgn floor_divide remainder fmod heaviside threshold "
    "hardshrink copysign nextafter angle frexp"
)
"""Operations from real numbers to real numbers that are not continuous."""


def place_after(call: Call) -> Place | None:
    """Where rows lie in the results of ``call``; None where that is unknown."""
    if "empty" in call.name or "resize" in call.name:
        return None  # memory that held other numbers
    if torch.Tag.nondeterministic_seeded in call.tags:
        return None  # coins, of nobody in particular
    rule = PLACES.get(call.name, elementwise if torch.Tag.pointwise in call.tags else None)
    place = rule(call) if rule is not None else None
    return CONSTANT if place is None and call.constants() else place


def steps(call: Call, result: Tensor) -> bool:
    """Whether ``result`` is a step of some row's real numbers."""
    if result.is_complex():
        return False
    jumps = call.name.rstrip("_") in JUMPS.split() or call.given.get("rounding_mode") is not None
    if result.is_floating_point() and not jumps:
        return False
    reals = [call.place(t) for t in call.tensors if t.is_floating_point() or t.is_complex()]
    return not all(place is not None and place.constant for place in reals)


@places(
    "clone _to_copy alias detach lift_fresh masked_fill_ log_sigmoid_forward rsub floor_divide "
    "floor_divide_ mse_loss smooth_l1_loss huber_loss binary_cross_entropy hardswish tril triu "
    "tril_ triu_"
)
def elementwise(call: Call) -> Place | None:
    """f(a, b, ...), broadcast: the same dimension of the result must count the same rows."""
    if call.given.get("reduction", 0) != 0:  # a loss that is summed up
        return None
    same = len(call.tensors) == 1 and call.name in _SAME and call.result.dtype in _COUNTING
    if same and call.first is not None and call.first.counts:
        return call.first
    return call.joined(call.tensors, call.result.dim())


_SAME = frozenset(["clone", "_to_copy", "alias", "detach"])
_COUNTING = (torch.int64, torch.int32, torch.float64)
"""Types that hold every index of a dimension exactly."""


@places("copy_ fill_ zero_")
def _overwritten(call: Call) -> Place | None:
    """Other numbers in place of all that stood there."""
    return call.joined(call.tensors[1:], call.result.dim())


@places("zeros_like ones_like full_like new_zeros new_ones new_full")
def _shaped_like(call: Call) -> Place | None:
    """Of another tensor's shape, and none of its values."""
    return CONSTANT if call.constants(1) else None


@places("arange")
def _arange(call: Call) -> Place | None:
    from_zero = call.given.get("start", 0) == 0 and call.given.get("step", 1) == 1
    exact = call.result.dtype in _COUNTING
    return Place(0, counts=True) if from_zero and exact else CONSTANT


@places("view _unsafe_view unsqueeze squeeze")
def _reshaped(call: Call) -> Place | None:
    """The same numbers in the same order, under another shape."""
    if "dtype" in call.given:
        return None
    return regrouped(call.first, call.shape, call.result.shape)


@places("transpose t permute")
def _moved(call: Call) -> Place | None:
    """Dimension i of the result is dimension ``order[i]`` of the argument."""
    place, order = call.first, list(range(len(call.shape)))
    if place is None or place.dim is None:
        return place
    if call.name == "permute":
        order = call.dims("dims")
    elif len(order) > 1:
        one, two = (0, 1) if call.name == "t" else (call.dims("dim0")[0], call.dims("dim1")[0])
        order[one], order[two] = two, one
    return place._replace(dim=order.index(place.dim))


@places("expand repeat")
def _repeated(call: Call) -> Place | None:
    """New dimensions come in front; the one that counts keeps its size."""
    place = call.first
    if place is None or place.dim is None:
        return place
    dim = place.dim + call.result.dim() - len(call.shape)
    same = call.result.shape[dim] == call.shape[place.dim]
    if place.counts:
        return place._replace(dim=dim) if same and call.name == "expand" else CONSTANT
    return place._replace(dim=dim) if same else None


@places("select slice split split_with_sizes unbind")
def _cut(call: Call) -> Place | None:
    """Parts of a dimension, or single indices; where it counts rows it must be whole."""
    place, dim = call.first, call.dims()[0]
    if place is None or place.dim is None:
        return place
    fewer = call.result.dim() < len(call.shape)
    if dim == place.dim:
        whole = not fewer and call.result.shape[dim] == call.shape[dim]
        return place if whole else (CONSTANT if place.counts else None)
    return place._replace(dim=place.dim - (fewer and dim < place.dim))


@places(
    "_softmax _safe_softmax _log_softmax cumsum cumprod cummax sort topk glu index_select sum mean "
    "prod amax amin max min all any logsumexp var std linalg_vector_norm argmax argmin "
    "native_layer_norm _fused_rms_norm constant_pad_nd convolution"
)
def along(call: Call) -> Place | None:
    """f along some dimensions, each index of the others for itself.

    The mixed dimensions stay in the result, or all of them go. Whatever else the call is given is
    constant.
    """
    place, mixed = call.first, _mixed(call)
    if place is None or not call.constants(1):
        return None
    if place.dim is None or place.counts:
        return CONSTANT
    if place.dim in mixed:
        return None
    gone = len(call.shape) > call.result.dim()
    return place._replace(dim=place.dim - sum(gone and dim < place.dim for dim in mixed))


def _mixed(call: Call) -> Sequence[int]:
    """The dimensions of whose numbers each result is made."""
    dims = range(len(call.shape))
    if "normalized_shape" in call.given:
        return dims[-len(call.given["normalized_shape"]) :]
    if "pad" in call.given:
        return [dims[-1] - at // 2 for at, amount in enumerate(call.given["pad"]) if amount != 0]
    return dims[1:] if call.name == "convolution" else call.dims()


@places("cat stack")
def _together(call: Call) -> Place | None:
    """Tensors side by side, along another dimension than that of rows."""
    dims, stacked = call.result.dim(), call.name == "stack"
    place, dim = call.joined(call.tensors, dims - stacked), call.given["dim"] % dims
    if place is None or place.dim is None:
        return place
    if stacked:
        return place._replace(dim=place.dim + (dim <= place.dim))
    return None if dim == place.dim else place


@places("nll_loss_forward nll_loss2d_forward")
def _token_losses(call: Call) -> Place | None:
    """Cross-entropies of (places, classes, ...), one number for each place."""
    place, target = call.first, call.place(call.given["target"])
    if call.given["reduction"] != 0 or len(call.shape) < 2 or not call.constants(2):
        return None
    by_rows = place is not None and place.dim == 0 and not place.counts
    return place if by_rows and target in (place, CONSTANT) else None


@places("mm bmm mv addmm baddbmm")
def _product(call: Call) -> Place | None:
    """Rows among the batch dimensions; or, beside a constant, as n or q of (n, p) @ (p, q)."""
    if "out" in call.given:  # a tensor more, which is no operand
        return None
    left, right = call.tensors[-2:]
    one, two = call.place(left), call.place(right)
    if one is None or two is None:
        return None
    found = [call.joined(call.tensors[:-2], call.result.dim())]  # a bias
    for place, summed in ((one, left.dim() - 1), (two, max(right.dim() - 2, 0))):
        if place.dim == summed and not place.counts:
            return None
        found.append(CONSTANT if place.counts else place)
    of_rows = {place for place in found if place != CONSTANT}
    return of_rows.pop() if len(of_rows) == 1 else None


@places("linalg_solve_triangular")
def _solved(call: Call) -> Place | None:
    """Systems of equations of (..., n, n) and (..., n, k): rows among the batch dimensions."""
    dims = call.result.dim()
    place = call.joined(call.tensors, dims)
    return None if place is not None and place.dim in (dims - 2, dims - 1) else place


@places("gather")
def _gathered(call: Call) -> Place | None:
    """``out[r, i] = x[r, index[r, i]]``: each row looks into itself."""
    place = call.joined(call.tensors, call.result.dim())
    return None if place is None or call.dims()[0] == place.dim else place


@places("embedding")
def _embedded(call: Call) -> Place | None:
    index = call.place(call.given["indices"])
    if call.first is None or not call.first.constant or index is None:
        return None
    return CONSTANT if index.constant else index


@places("index")
def _indexed(call: Call) -> Place | None:
    """Into a constant; each row into itself; all rows at the same places."""
    entries = call.given["indices"]
    given = [entry for entry in entries if entry is not None]
    if call.first is None or any(t.dtype in (torch.bool, torch.uint8) for t in given):
        return None
    begin, dims = entries.index(given[0]) if given else 0, max((t.dim() for t in given), default=0)
    if any(entry is None for entry in entries[begin : begin + len(given)]):
        return None  # indexed dimensions that are not side by side come in front
    if call.first.constant:
        found = call.joined(given, dims)
        if found is None or found.dim is None:
            return found
        return found._replace(dim=found.dim + begin)
    if call.first.dim is not None and call.first.dim < begin and call.constants(1):
        return call.first
    head = call.place(given[0])
    if call.first != FIRST or begin or head is None or head.dim is None or not head.counts:
        return None
    where = Place(head.dim + dims - given[0].dim())  # x[arange(rows), ...]: index r, row r
    return where if call.joined(given[1:], dims) in (CONSTANT, where) else None


class Followed(Protocol):
    """The rows of a pass, as the rule of a whole function sees them."""

    def place_of(self, tensor: Tensor) -> Place | None:
        """Where rows lie in ``tensor``; None where that is unknown."""
        ...

    def throw(self) -> None:
        """Note that coins are thrown, each a row's own."""
        ...


def _dropped(
    rows: Followed,
    input: Tensor,
    p: object = 0.5,
    training: object = True,
    *others: object,
    **named: object,
) -> Place | None:
    """a, some numbers of it replaced by 0, each by a coin of its own.

    A row's numbers then are a function of its own coins too. Coins thrown for a constant belong to
    somebody as well: to the row whose index they have, which is what (rows, ...) says. Where its
    shape says otherwise, as that of weights or of positions for all rows, `Rows.mark` drops the
    place: the coins are nobody's, or everybody's, and what becomes of them is not proved.
    """
    place = rows.place_of(input)
    if place is None or not isinstance(p, int | float):  # a rate may be somebody's number
        return None
    if p == 0 or named.get("train", training) is False:
        return CONSTANT if place.counts else place
    rows.throw()
    return FIRST if place.constant else place


def _attended(
    rows: Followed,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: object = 0.0,
    is_causal: object = False,
    *,
    scale: object = None,
    enable_gqa: object = False,
) -> Place | None:
    """Queries, keys, values, mask of (..., positions, width): rows among the batch dimensions.

    Some of them may be constant: learned queries, prefixes.
    """
    given = [query, key, value, attn_mask]
    dims = max(tensor.dim() for tensor in tensors_in(given))
    place = joined(rows.place_of, given, dims)
    numbers = isinstance(dropout_p, int | float) and isinstance(scale, int | float | None)
    if not numbers or place is None or place.dim in (dims - 2, dims - 1):
        return None
    if dropout_p == 0:
        return place
    rows.throw()
    return FIRST if place.constant else place


def _own_token_losses(rows: Followed, logits: Tensor, labels: Tensor) -> Place | None:
    """Ours, of (..., classes): one number for each place, of that place alone."""
    place, other = rows.place_of(logits), rows.place_of(labels)
    if place is None or place.constant or place.dim == logits.dim() - 1:
        return None
    fits = labels.shape == logits.shape[:-1] and other in (place, CONSTANT)
    return place if fits else None


FUNCTIONS: dict[Callable[..., Any], Callable[..., Place | None]] = {
    F.dropout: _dropped,
    torch.dropout: _dropped,
    F.scaled_dot_product_attention: _attended,
    token_losses: _own_token_losses,
}
"""Rules for whole functions: whose operations differ from device to device, or throw coins."""
