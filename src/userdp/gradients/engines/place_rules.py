"""Which places the results of torch's functions have, function by function.

A rule may answer with a place only if, for every value of the arguments, an element of row r in the
result is a function of constants and of the arguments' elements of row r. See `rows` for what
follows. It answers None where that is not so or not known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from types import EllipsisType
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from userdp.gradients.engines.places import CONSTANT, FIRST, Call, Place

Rule: TypeAlias = Callable[[Call], Place | None]


# Numbers for themselves.


def _elementwise(call: Call) -> Place | None:
    """f(a, b, ...), broadcast: the same dimension of the result must count the same rows."""
    if not isinstance(call.result, Tensor):  # torch.where(condition) is a selection
        return None
    return call.joined(call.values, call.result.dim())


def _like_first(call: Call) -> Place | None:
    """f(a), of the same shape; what else the call is given is nobody's."""
    place = call.first if call.result.shape == call.shape and call.rest_known() else None
    return CONSTANT if place is not None and place.counts else place


def _same_numbers(call: Call) -> Place | None:
    """a, perhaps in another type; a count stays one only in types that hold every index."""
    place = call.first if call.result.shape == call.shape else None
    if place is not None and place.counts and call.result.dtype not in _EXACT:
        return CONSTANT
    return place


_EXACT = (torch.int64, torch.int32, torch.float64)


def _dropped(call: Call) -> Place | None:
    """a, some numbers of it replaced by 0, each by a coin of its own.

    A row's numbers then are a function of its own coins too. Coins thrown for a constant belong to
    somebody as well: to the row whose index they have, which is what (rows, ...) says. Where its
    shape says otherwise, as that of weights or of positions for all rows, `Rows.mark` drops the
    place: the coins are nobody's, or everybody's, and what becomes of them is not proved.
    """
    place, rate = _like_first(call), call.argument(1, "p", 0.5)
    if place is None or not isinstance(rate, int | float):  # a rate may be somebody's number
        return None
    thrown = rate != 0 and call.argument(2, "training", call.kwargs.get("train")) is not False
    return FIRST if thrown and place.constant else place


def _dropped_channels(call: Call) -> Place | None:
    """(rows, channels, ...), or (channels, ...), with one coin for all behind these dimensions.

    Rows in the first dimension share none; in any other they might.
    """
    place = _dropped(call)
    return place if place is not None and place.dim in (None, 0) else None


def _pair_losses(call: Call) -> Place | None:
    """Elementwise losses of two tensors, such as a squared error."""
    return _elementwise(call) if _unreduced(call, call.kwargs.get("reduction")) else None


def _token_losses(call: Call) -> Place | None:
    """Cross-entropies of (places, classes, ...), one number for each place."""
    if not _unreduced(call, call.argument(6, "reduction")) or not call.rest_constant(2):
        return None
    target = call.argument(1, "target")
    other = call.place(target) if isinstance(target, Tensor) else None
    if call.first is None or other is None or len(call.shape) < 2:
        return None
    return call.first if call.first.dim == 0 and other in (call.first, CONSTANT) else None


def _unreduced(call: Call, reduction: object) -> bool:
    legacy = [call.argument(3, "size_average"), call.argument(5, "reduce")]
    return reduction == "none" and legacy == [None, None]


# Constants.


def _constant(call: Call) -> Place | None:
    """Made of numbers; a tensor among them, or in them, makes it unknown."""
    return CONSTANT if _no_tensors(call.values) else None


def _of_constants(call: Call) -> Place | None:
    """A function of constants, which looks for packed sequences among positions, say."""
    place = call.first
    return CONSTANT if place is not None and place.constant and call.rest_constant() else None


def _constant_like(call: Call) -> Place | None:
    """Of another tensor's shape, and none of its values."""
    return CONSTANT if _no_tensors((*call.args[1:], *call.kwargs.values())) else None


def _arange(call: Call) -> Place | None:
    if not _no_tensors(call.values):
        return None
    bounds = [call.kwargs.get(name) for name in ("start", "end", "step")]
    if call.result.dtype not in _EXACT:
        return CONSTANT
    from_zero = len(call.args) == 1 or (len(call.args) == 2 and call.args[0] == 0)
    return Place(0, counts=True) if from_zero and bounds == [None] * 3 else CONSTANT


def _no_tensors(values: Iterable[object]) -> bool:
    return not any(
        isinstance(v, Tensor) or (isinstance(v, tuple | list) and not _no_tensors(v))
        for v in values
    )


# The same numbers in another shape.


def _reshaped(call: Call) -> Place | None:
    """The same numbers in the same order, under another shape."""
    if not call.rest_known() or any(isinstance(value, torch.dtype) for value in call.values):
        return None
    return regrouped(call.first, call.shape, call.result.shape)


def regrouped(place: Place | None, before: Sequence[int], after: Sequence[int]) -> Place | None:
    """Where rows lie once shape ``before`` is seen as ``after``, both in row-major order.

    With P the product of the sizes before ``dim``, each of P blocks holds the rows one after
    another, L = inner x (sizes after ``dim``) numbers each. A dimension of the new shape counts
    them if the sizes before it multiply to P and those after it divide L.
    """
    if place is None or place.dim is None:
        return place
    prefix = math.prod(before[: place.dim])
    long = place.inner * math.prod(before[place.dim + 1 :])
    rows = before[place.dim] // place.inner
    ahead = 1
    for dim, size in enumerate(after):
        if ahead == prefix:
            suffix = math.prod(after[dim + 1 :])
            inner = 0 if suffix == 0 or long % suffix else long // suffix
            if inner and size == rows * inner and (inner == 1 or not place.counts):
                return Place(dim, inner, place.counts)
        ahead *= size
    return CONSTANT if place.counts else None


def _moved(place: Place | None, order: Sequence[int]) -> Place | None:
    """Dimension i of the result is dimension ``order[i]`` of the argument."""
    if place is None or place.dim is None:
        return place
    return Place(order.index(place.dim), place.inner, place.counts)


def _transpose(call: Call) -> Place | None:
    one, two = call.dim(1, "dim0"), call.dim(2, "dim1")
    if one is None or two is None:
        return None
    order = list(range(len(call.shape)))
    order[one], order[two] = two, one
    return _moved(call.first, order)


def _swap_last(call: Call) -> Place | None:
    """The properties ``T`` (of a matrix) and ``mT``."""
    dims = len(call.shape)
    order = [*range(dims - 2), dims - 1, dims - 2]
    return _moved(call.first, order) if dims >= 2 else None


def _swap_both(call: Call) -> Place | None:
    return _swap_last(call) if len(call.shape) == 2 else None


def _permute(call: Call) -> Place | None:
    dims = call.args[1:] or call.kwargs.get("dims", ())
    if len(dims) == 1 and isinstance(dims[0], tuple | list):
        dims = dims[0]
    return _moved(call.first, [d % len(call.shape) for d in dims]) if dims else None


def _expand(call: Call) -> Place | None:
    """New dimensions come in front; the one that counts keeps its size."""
    place = call.first if call.rest_known() else None
    if place is None or place.dim is None:
        return place
    dim = place.dim + call.result.dim() - len(call.shape)
    if call.result.shape[dim] == call.shape[place.dim]:
        return place._replace(dim=dim)
    return CONSTANT if place.counts else None


def _repeat(call: Call) -> Place | None:
    place = _expand(call)
    return CONSTANT if place is not None and place.counts else place


def _repeat_interleave(call: Call) -> Place | None:
    times, dim, place = call.argument(1, "repeats"), call.dim(2), call.first
    if not isinstance(times, int) or dim is None or place is None:
        return None
    if place.constant:
        return CONSTANT
    return place._replace(inner=place.inner * (times if dim == place.dim else 1))


def _unbind(call: Call) -> Place | None:
    dim, place = call.dim(1, "dim", 0), call.first
    if place is None or place.dim is None or place.counts:
        return None if place is None else CONSTANT
    if dim is None or dim == place.dim:
        return None
    return place._replace(dim=place.dim - (dim < place.dim))


def _cat(call: Call) -> Place | None:
    tensors, dim = call.argument(0, "tensors"), call.argument(1, "dim", 0)
    if not isinstance(tensors, tuple | list) or not isinstance(dim, int):
        return None
    place = call.joined(tensors, call.result.dim())
    if place is None or place.constant:
        return place
    return None if dim % call.result.dim() == place.dim else place


def _stack(call: Call) -> Place | None:
    tensors, dim = call.argument(0, "tensors"), call.argument(1, "dim", 0)
    if not isinstance(tensors, tuple | list) or not isinstance(dim, int):
        return None
    place = call.joined(tensors, call.result.dim() - 1)
    if place is None or place.dim is None:
        return place
    return place._replace(dim=place.dim + (dim % call.result.dim() <= place.dim))


# Along or over some dimensions.


def _along(position: int, default: int | None = None) -> Rule:
    """f along one dimension, each of the others for itself: softmax, cumsum, sort, split, ..."""

    def rule(call: Call) -> Place | None:
        place, dim = call.first, call.dim(position, "dim", default)
        if place is None or not call.rest_constant():
            return None
        if place.constant:
            return CONSTANT
        return None if dim is None or dim == place.dim else place

    return rule


def _reduced(call: Call) -> Place | None:
    """A sum, mean, ... over dimensions that do not count rows."""
    if not call.rest_constant():
        return _elementwise(call)  # the larger of two tensors
    place = call.first
    if place is None or place.dim is None or place.counts:
        return None if place is None else CONSTANT
    over = call.argument(1, "dim", call.kwargs.get("axis"))
    if isinstance(over, int) and not isinstance(over, bool):
        over = [over]
    if not isinstance(over, tuple | list) or not over:
        return None
    dims = {d % len(call.shape) for d in over}
    if place.dim in dims:
        return None
    one = call.result if isinstance(call.result, Tensor) else call.result[0]
    if one.dim() == len(call.shape):
        return place
    return place._replace(dim=place.dim - sum(d < place.dim for d in dims))


def _gather(call: Call) -> Place | None:
    """``out[r, i] = x[r, index[r, i]]``: each row looks into itself."""
    index, dim = call.argument(2, "index"), call.dim(1)
    if call.first is None or dim is None or not isinstance(index, Tensor):
        return None
    place = call.joined((call.args[0], index), call.result.dim())
    return None if place is None or dim == place.dim else place


def _index_select(call: Call) -> Place | None:
    """The same constant indices for every row."""
    dim, place = call.dim(1), call.first
    if place is None or not call.rest_constant():
        return None
    if place.constant:
        return CONSTANT
    return None if dim is None or dim == place.dim else place


def _keeping_last(call: Call, last: int) -> Place | None:
    """f of the ``last`` dimensions, each of the others for itself."""
    place = call.first
    if place is None or not call.rest_constant():
        return None
    if place.dim is None or place.counts:
        return CONSTANT
    return place if place.dim < len(call.shape) - last else None


def _linear(call: Call) -> Place | None:
    return _keeping_last(call, 1)


def _normalized(call: Call) -> Place | None:
    shape = call.argument(1, "normalized_shape")
    return _keeping_last(call, len(shape)) if isinstance(shape, tuple | list) else None


def _pad(call: Call) -> Place | None:
    amounts = call.argument(1, "pad")
    return _keeping_last(call, len(amounts) // 2) if isinstance(amounts, tuple | list) else None


# Products.


def _matmul(call: Call) -> Place | None:
    """(..., n, p) @ (..., p, q)."""
    return _of_product(call, call.args[0], call.args[1]) if len(call.args) == 2 else None


def _addmm(call: Call) -> Place | None:
    """``bias + x @ weight``; ``baddbmm`` too."""
    left = call.argument(1, "mat1", call.kwargs.get("batch1"))
    right = call.argument(2, "mat2", call.kwargs.get("batch2"))
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
    found: set[Place] = set()
    for place, tensor, contracted in ((one, left, -1), (two, right, -2)):
        if place.dim is None or place.counts:
            continue
        from_end = place.dim - tensor.dim()
        if from_end == contracted or (from_end >= -2 and not (one.constant or two.constant)):
            return None
        found.add(Place(call.result.dim() + from_end, place.inner))
    return found.pop() if len(found) == 1 else None


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


# Look-ups.


def _embedding(call: Call) -> Place | None:
    if call.argument(3, "max_norm") is not None:  # writes to the table
        return None
    return call.first if call.rest_constant() else None


def _one_hot(call: Call) -> Place | None:
    classes = call.argument(1, "num_classes", -1)
    return call.first if isinstance(classes, int) and classes > 0 else None


def _getitem(call: Call) -> Place | None:
    tensor, index = call.args
    entries = index if isinstance(index, tuple) else (index,)
    if not all(
        entry is None
        or isinstance(entry, Tensor | slice | EllipsisType)
        or (isinstance(entry, int) and not isinstance(entry, bool))
        for entry in entries
    ):
        return None
    bounds = [b for e in entries if isinstance(e, slice) for b in (e.start, e.stop, e.step)]
    if any(isinstance(bound, Tensor) for bound in bounds):
        return None
    if any(isinstance(entry, Tensor) for entry in entries):
        return _looked_up(call, entries)
    return _sliced(call.first, tensor.shape, entries)


def _sliced(place: Place | None, shape: Sequence[int], entries: Sequence[Any]) -> Place | None:
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
        after += isinstance(entry, slice)
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


def _named(names: str) -> list[Callable[..., Any]]:
    """All functions and methods of these names, wherever torch keeps them."""
    homes = (torch, torch.Tensor, F, torch.functional)
    found = [getattr(home, name, None) for name in names.split() for home in homes]
    return [function for function in found if callable(function)]


def getter(name: str) -> Callable[..., Any]:
    """What stands for reading a tensor's property."""
    found: Callable[..., Any] = getattr(torch.Tensor, name).__get__
    return found


def setter(name: str) -> Callable[..., Any]:
    """What stands for setting a tensor's property."""
    found: Callable[..., Any] = getattr(torch.Tensor, name).__set__
    return found


_OPERATORS = (
    "add sub mul truediv floordiv mod pow and or xor radd rsub rmul rtruediv rpow rand ror rxor "
    "iadd isub imul itruediv iand ior eq ne lt le gt ge neg invert abs pos"
)
_ELEMENTWISE = (
    "abs neg negative positive exp exp2 expm1 log log2 log10 log1p sqrt rsqrt square reciprocal "
    "sin cos tan tanh sigmoid erf atan sign round floor ceil trunc add sub subtract mul multiply "
    "div divide true_divide floor_divide remainder pow maximum minimum where masked_fill eq ne lt "
    "le gt ge logical_and logical_or logical_not logical_xor bitwise_and bitwise_or bitwise_xor "
    "bitwise_not isfinite isnan isinf nan_to_num addcmul addcdiv lerp logaddexp clamp clamp_min "
    "clamp_max clip relu relu6 gelu silu mish softplus elu selu celu leaky_relu hardtanh hardswish "
    "hardsigmoid softsign logsigmoid tanhshrink threshold"
)
_SAME = (
    "to type type_as float double half bfloat16 long int short bool cpu contiguous clone detach "
    "detach_"
)
_TABLE: tuple[tuple[str, Rule], ...] = (
    (_ELEMENTWISE, _elementwise),
    (" ".join(f"{name}_" for name in _ELEMENTWISE.split()), _elementwise),
    (" ".join(f"__{name}__" for name in _OPERATORS.split()), _elementwise),
    (_SAME, _same_numbers),
    ("tril triu tril_ triu_", _like_first),
    ("dropout dropout_ alpha_dropout alpha_dropout_", _dropped),
    (
        "dropout1d dropout2d dropout3d feature_dropout feature_dropout_ "
        "feature_alpha_dropout feature_alpha_dropout_",
        _dropped_channels,
    ),
    ("mse_loss l1_loss smooth_l1_loss binary_cross_entropy_with_logits", _pair_losses),
    ("cross_entropy nll_loss", _token_losses),
    ("zeros ones full tensor scalar_tensor linspace eye", _constant),
    ("new_zeros new_ones new_full zeros_like ones_like full_like", _constant_like),
    ("arange", _arange),
    ("diff searchsorted bucketize", _of_constants),
    ("view reshape flatten unflatten squeeze unsqueeze view_as reshape_as", _reshaped),
    ("transpose swapaxes swapdims", _transpose),
    ("permute", _permute),
    ("expand broadcast_to expand_as", _expand),
    ("repeat", _repeat),
    ("repeat_interleave", _repeat_interleave),
    ("unbind", _unbind),
    ("cat concat concatenate", _cat),
    ("stack", _stack),
    ("softmax log_softmax cumsum cumprod narrow", _along(1)),
    ("sort argsort glu", _along(1, -1)),
    ("topk", _along(2, -1)),
    ("normalize", _along(2, 1)),
    ("split chunk tensor_split", _along(2, 0)),
    ("sum mean prod amax amin max min all any logsumexp var std argmax argmin", _reduced),
    ("gather", _gather),
    ("index_select", _index_select),
    ("linear", _linear),
    ("layer_norm rms_norm", _normalized),
    ("pad", _pad),
    ("matmul bmm mm __matmul__", _matmul),
    ("addmm baddbmm", _addmm),
    ("scaled_dot_product_attention", _attention),
    ("embedding", _embedding),
    ("one_hot", _one_hot),
    ("__getitem__", _getitem),
)
PLACES: dict[Callable[..., Any], Rule] = {
    function: rule for names, rule in _TABLE for function in _named(names)
} | {getter("T"): _swap_both, getter("mT"): _swap_last}

READS_SHAPES = frozenset(
    [
        *_named("size numel nelement __len__ stride storage_offset is_contiguous nbytes"),
        getter("shape"),
        getter("nbytes"),
    ]
)
"""What makes numbers of a shape: those of a selection count somebody's tokens."""

_KINDS = (
    "dtype device layout ndim is_leaf requires_grad is_cuda is_cpu is_sparse is_quantized is_meta "
    "is_nested is_mps is_xpu is_mkldnn itemsize _version"
)
READS_KINDS = frozenset(
    [
        *_named(
            "dim ndimension is_floating_point is_complex is_signed is_inference is_conj is_neg"
        ),
        *_named("element_size get_device __hash__"),
        *map(getter, _KINDS.split()),
    ]
)
"""What tells of a tensor's kind, which is the same whatever it holds and however long it is."""

HANDS_OUT = frozenset([*_named("data_ptr set_ share_memory_"), getter("data"), setter("data")])
"""What hands out a tensor's memory, or puts another in its place: writes there are not counted."""

FIXED_LENGTH = frozenset(_named("nonzero where"))
"""What returns a tuple of a tensor for each dimension, so that its length counts nothing."""
