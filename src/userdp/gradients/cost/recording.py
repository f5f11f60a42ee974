"""`Recorder`: what a computation asks of a machine: products, bytes, launches, and live memory.

Below autograd every operation of torch passes a dispatch mode once, those of the private engines
like those of an ordinary backward pass. Each is noted as an `Op`: how many operations its products
are (by `torch.utils.flop_counter`), how many bytes it must read and write, and of which kind it is,
since a number that is converted or goes through ``tanh`` costs more than one that is copied. What
torch allocates is followed from allocation to release.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry


class Kind(StrEnum):
    """What decides how long an operation takes, beside its bytes."""

    PRODUCT = "product"
    """A product of matrices: its operations, at the rate of its dtype."""
    ATTENTION = "attention"
    """Fused attention: products and exponentials together."""
    SPECIAL = "special"
    """Exponentials, logarithms and their like, number by number."""
    MIXED = "mixed"
    """Arithmetic between floating dtypes: a CPU takes it apart into small buffers."""
    STREAM = "stream"
    """Everything else that touches numbers."""
    VIEW = "view"
    """Touches none: only the host is busy."""


_SPECIAL = {
    "tanh", "exp", "exp_", "log", "log_", "sigmoid", "gelu", "gelu_backward", "silu",
    "silu_backward", "erf", "softmax", "_softmax", "_log_softmax", "_log_softmax_backward_data",
    "sin", "cos", "logsumexp", "log1p",
}  # fmt: skip

_READS_ROWS = {"embedding", "index_select", "gather", "index", "nll_loss_forward"}
"""Of their largest input they read what they write, not all of it."""

_WRITES_ROWS = {"index_add_", "index_put_", "_index_put_impl_", "scatter_add_", "index_copy_"}
"""Of what they change they touch as much as they are given."""

_WRITES_ONLY = {"nll_loss_backward", "embedding_dense_backward", "zeros_like", "new_zeros", "zero_"}
"""They do not read the large tensor that they are given, if any."""

_NOTHING = {
    "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided",
    "_unsafe_view", "squeeze_", "unsqueeze_", "t_", "transpose_", "detach_",
}  # fmt: skip
"""They reserve memory and touch none of it; or are views that their schema does not call so."""


@dataclass(frozen=True, slots=True)
class Op:
    """One operation, or, scaled, a share of one.

    Attributes:
        name: of torch's operator, without its overload.
        kind: see `Kind`.
        dtype: of what is multiplied, else of the result, as torch prints it ("float32"); "" of
            whole numbers.
        flops: operations of its products.
        moved: bytes that it must read and write.
        numbers: in its results.
        allocated: bytes of memory that is new.
    """

    name: str
    kind: Kind
    dtype: str
    flops: float
    moved: float
    numbers: float
    allocated: float

    @property
    def fresh(self) -> float:
        """Bytes that a CPU's system hands over anew each time, as pages to clear."""
        return self.allocated if self.allocated >= _FRESH else 0.0


_FRESH = 32 << 20
"""Largest block that glibc may keep when it is freed."""


def _attention_flops(query: Tensor, key: Tensor, products: int) -> int:
    batch, heads, positions, width = query.shape
    return products * 2 * batch * heads * positions * key.shape[2] * width


_OWN_FLOPS: Mapping[str, Callable[..., int]] = {
    "_scaled_dot_product_flash_attention_for_cpu": lambda query, key, *rest, **more: (
        _attention_flops(query, key, 2)
    ),
    "_scaled_dot_product_flash_attention_for_cpu_backward": (
        lambda gradient, query, key, *rest, **more: _attention_flops(query, key, 5)
    ),
    "baddbmm_": lambda into, left, right, **scales: 2 * into.numel() * left.shape[-1],
    "addmm_": lambda into, left, right, **scales: 2 * into.numel() * left.shape[-1],
}
"""Of operators that `flop_registry` does not know."""


def _bytes(tensor: Tensor) -> int:
    """What there is of it in memory: an expanded tensor repeats numbers, and holds them once."""
    return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())


def _tensors(values: object) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def _floating(tensors: Iterable[Tensor]) -> set[torch.dtype]:
    return {t.dtype for t in tensors if t.is_floating_point() and t.dim() > 0}


class Live:
    """How many bytes of tensors there are, and in which segment of a pass.

    A pass goes through the segments ``forward first``, ``forward last``, ``head``, ``backward
    last``, ``backward first``; which one is told by the weights that an operation reads. What comes
    before a layer's first operation belongs to the segment before it.

    Args:
        layer_of: the layer, from 0, of each parameter's storage; None for one outside all layers.
        layers: how many there are.

    Attributes:
        now: bytes.
        high: the most since the last operation began.
        segments: of that operation, with the number of the pass; a lone layer is the first and the
            last.
    """

    def __init__(self, layer_of: Mapping[int, int | None], layers: int) -> None:
        self.now = self.high = 0
        self._layer_of, self._layers = layer_of, layers
        self._backward, self._in_layers, self._passes = False, False, 1
        self.segments: tuple[str, ...] = ()
        self._enter("begin")

    def enter(self, read: Iterable[int]) -> None:
        """Begin the next operation, which reads these storages."""
        self.high = self.now
        known = [self._layer_of[address] for address in read if address in self._layer_of]
        if not known:
            return
        layer = known[0]
        if layer is None:
            if self._in_layers:
                self._passes += self._backward
                self._backward, self._in_layers = not self._backward, False
            self._enter("head" if self._backward else "begin")
            return
        self._in_layers = True
        # Layers between the first and the last reach no peak that neither of those two does. A lone
        # layer is both.
        way = "backward" if self._backward else "forward"
        ends = {"first": 0, "last": self._layers - 1}
        self._enter(*(f"{way} {end}" for end, place in ends.items() if place == layer))

    def _enter(self, *segments: str) -> None:
        self.segments = tuple(f"{segment}, {self._passes}" for segment in segments)

    def added(self, size: int) -> None:
        """Count an allocation, or, negative, a release."""
        self.now += size
        self.high = max(self.high, self.now)


class Recorder(TorchDispatchMode):
    """Notes every operation within.

    Args:
        live: follows the memory.
        copies: whether arithmetic between dtypes copies the narrower tensor whole, into the wider
            one's dtype, as it does on a CPU; no dispatch mode sees that copy.
        clock: takes each operation's seconds.

    Attributes:
        ops: in their order.
        lives: of each of them, its segments and the most bytes that there were meanwhile.
        seconds: of each of them; zeros without a clock.
    """

    def __init__(
        self, live: Live, *, copies: bool, clock: Callable[[], float] = lambda: 0.0
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no types there
        self.ops: list[Op] = []
        self.lives: list[tuple[tuple[str, ...], int]] = []
        self.seconds: list[float] = []
        self._clock = clock
        self.live = live
        self._copies = copies
        self._seen: set[int] = set()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        options = kwargs or {}
        before = _tensors((args, options))
        self.live.enter(t.untyped_storage().data_ptr() for t in before)
        begin = self._clock()
        result = func(*args, **options)
        self.seconds.append(self._clock() - begin)
        after = _tensors(result)
        held = {t.untyped_storage()._cdata for t in before}
        new = self._follow(t for t in after if t.untyped_storage()._cdata not in held)
        op = _op(func, args, options, result, before, after, new)
        if self._copies and op.kind is Kind.MIXED:
            copied = _copied(before)
            self.live.added(copied)
            self.live.added(-copied)
            op = replace(op, allocated=op.allocated + copied)
        self.ops.append(op)
        self.lives.append((self.live.segments, self.live.high))
        return result

    def _follow(self, new: Iterable[Tensor]) -> int:
        """Count the storages of ``new``, till they are released; returns their bytes."""
        total = 0
        for tensor in new:
            storage = tensor.untyped_storage()
            key, size = storage._cdata, storage.nbytes()
            if key in self._seen:
                continue
            self._seen.add(key)
            self.live.added(size)
            weakref.finalize(storage, self._released, key, size)
            total += size
        return total

    def _released(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.live.added(-size)


def _op(
    func: Any,
    args: tuple[Any, ...],
    options: dict[str, Any],
    result: object,
    before: list[Tensor],
    after: list[Tensor],
    allocated: int,
) -> Op:
    name = func._schema.name.removeprefix("aten::")
    formula = flop_registry.get(func._overloadpacket)
    flops = 0
    if name in _OWN_FLOPS:
        flops = _OWN_FLOPS[name](*args, **options)
    elif formula is not None:
        flops = formula(*args, **options, out_val=result)
    return Op(
        name=name,
        kind=_kind(func, name, flops, before, after),
        dtype=_dtype(before if flops else after),
        flops=float(flops),
        moved=float(_moved(func, name, before, after)),
        numbers=float(sum(t.numel() for t in after)),
        allocated=float(allocated),
    )


def _copied(tensors: Iterable[Tensor]) -> int:
    """Bytes of copies of all floating tensors of fewer bits than the widest, in its dtype."""
    floating = [t for t in tensors if t.is_floating_point()]
    widest = max(t.element_size() for t in floating if t.dim() > 0)
    return sum(t.numel() * widest for t in floating if t.element_size() < widest)


def _dtype(tensors: list[Tensor]) -> str:
    """The narrowest floating one: a product takes as long as what it multiplies."""
    dtypes = sorted(_floating(tensors), key=lambda dtype: dtype.itemsize)
    return str(dtypes[0]).removeprefix("torch.") if dtypes else ""


def _kind(func: Any, name: str, flops: int, before: list[Tensor], after: list[Tensor]) -> Kind:
    if func.is_view or not after or name in _NOTHING:
        return Kind.VIEW
    if flops:
        return Kind.ATTENTION if "attention" in name else Kind.PRODUCT
    if name in _SPECIAL:
        return Kind.SPECIAL
    if len(_floating(before)) > 1 and name not in {"copy_", "cat"}:
        return Kind.MIXED
    return Kind.STREAM


def _moved(func: Any, name: str, before: list[Tensor], after: list[Tensor]) -> int:
    if func.is_view or name in _NOTHING:
        return 0
    written = sum(_bytes(t) for t in after)
    if name in _READS_ROWS:
        return 2 * written
    if name in _WRITES_ROWS:
        return 3 * sum(_bytes(t) for t in before[1:])
    if name in _WRITES_ONLY:
        return written
    # The same numbers given twice, as to a norm, are read once.
    read = {(t.untyped_storage()._cdata, t.storage_offset()): _bytes(t) for t in before}
    return sum(read.values()) + written
