r"""Randomness inside the model (dropout and its kin): secret, and nobody's business but the row's.

**Why masks must be secret.** A dropout mask is a function of a generator's state and of the place
of a row in the pass. After ``torch.manual_seed(0)`` that state is public, and the place is the
cohort's doing: leave one user out, and everybody behind it has other masks, so that the clipped sum
moves by a multiple of C. A seed drawn in secret is not enough either: a torch CPU generator keeps
32 bits of it, which can be tried out one by one.

**The argument.** Let R_v be all random numbers that the passes over unit v draw, and
:math:`S(D, r) = \sum_{v \in D} f(D_v, r_v)` the clipped sum where they are r. If

1. the R_v are independent of each other and of the draw of the cohort, and the law of R_v depends
   on v's own rows alone (not on who else is there), and
2. f is computed from one r_v: the norm that clips and the gradient that is added are of the same
   masks, so that :math:`\|f(D_v, r_v)\| \le C` for every r_v,

then give everybody else equal masks in both worlds. By 1 this is a coupling of the two: D and
D∖u are mixtures of :math:`M_r(D)` and :math:`M_r(D \setminus u)` under one and the same law of r.
By 2 each pair has sensitivity C, hence the privacy profile of the accounted mechanism, u's coin
being independent of r. The hockey-stick divergence is jointly convex:

.. math:: H_\alpha\Big(\mathbb{E}_r M_r(D) \,\Big\|\, \mathbb{E}_r M_r(D \setminus u)\Big)
    \le \mathbb{E}_r\, H_\alpha(M_r(D) \,\|\, M_r(D \setminus u)) \le \delta(\alpha),

and the same with the sides exchanged. No property of dropout is used.

**What gives 1.** Within `secret_randomness` the default generators that a model can reach (torch's
on the CPU and on each device, NumPy's and Python's) hold full states from the operating system. A
mt19937 with uniform 19,937 bits puts out 623 words that are uniform and independent exactly; beyond
that, and for Philox (64 bits of key and 62 of counter), the claim takes their streams for
independent uniform numbers, as it does the noise's. Each pass, and each unit that the reference
engine computes, begins from states of its own (`StatesApart`). Rows of several units share a pass
only if each random number belongs to one row (`certificate.rows`): anything else is computed unit
by unit. A generator of the model's own is refused where a module holds it, and denies the
certificate where it is an argument.

**What gives 2.** A unit's masks are those of its place in its pass, drawn once. What is computed
twice (a unit whose pass raised an error, or whose norm float32 cannot hold) begins from the states
of the first time, in the same place of a pass of the same shape (`engines.again`); recomputation
under activation checkpointing keeps its states. Where memory ran out, all begins anew from the
first states (`engines.room`).
"""

from __future__ import annotations

import functools
import hashlib
import os
import random
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, ParamSpec, TypeVar

import numpy as np
import torch
from torch import nn

from userdp.errors import FailureError, UseError

_WORDS = 624  # of a mt19937 state
_TORCH_CPU = struct.Struct(f"=Qiiq{_WORDS}QdddixxxxfBxxx")
"""`CPUGeneratorImplState`: seed, left, seeded, next, words (each in 64 bits), cached normals."""
_PHILOX = struct.Struct("=QQ")
"""`CUDAGeneratorImpl` and `XPUGeneratorImpl`: key, and the offset, a multiple of 4."""
_MPS_BYTES = 36
"""`MPSGeneratorImpl`: five words of counter, two of key, and the seed; each is free."""
_SEED = {"cpu": slice(8), "cuda": slice(8), "xpu": slice(8), "mps": slice(-8, None)}
"""Where each state has what `initial_seed` tells; Philox has its key there."""

Bytes = Callable[[int], bytes]
_P = ParamSpec("_P")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class GeneratorStates:
    """The states of all default generators: torch's by device, NumPy's, Python's.

    >>> before = GeneratorStates.read()
    >>> _ = torch.rand(3), random.random()
    >>> before == GeneratorStates.read()
    False
    >>> before.load()
    >>> before == GeneratorStates.read()
    True
    """

    devices: dict[str, bytes]
    numpy: bytes
    python: tuple[Any, ...]

    @classmethod
    def read(cls) -> GeneratorStates:
        """As they are now."""
        legacy: Any = np.random.get_state(legacy=False)
        if legacy["bit_generator"] != "MT19937":
            raise UseError(
                f"NumPy's global generator is a {legacy['bit_generator']}, whose state is not known"
                " here, so that a model might draw from public numbers",
                hint="do not call numpy.random.set_bit_generator",
            )
        numpy = legacy["state"]["key"].astype("=u4").tobytes() + struct.pack(
            "=iid", legacy["state"]["pos"], legacy["has_gauss"], legacy["gauss"]
        )
        return cls(
            devices=device_states(),
            numpy=numpy,
            python=random.getstate(),
        )

    def load(self) -> None:
        """Make them so again."""
        here = generators()
        for name, state in self.devices.items():
            here[name].set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
        key = np.frombuffer(self.numpy[: 4 * _WORDS], dtype="=u4")
        place, has_gauss, gauss = struct.unpack("=iid", self.numpy[4 * _WORDS :])
        np.random.set_state(("MT19937", key, place, has_gauss, gauss))
        random.setstate(self.python)

    @property
    def host(self) -> tuple[bytes, tuple[Any, ...]]:
        """Of the two that torch knows nothing of, and checkpointing does not keep."""
        return self.numpy, self.python


def generators() -> dict[str, torch.Generator]:
    """The default generator of each device that is awake, by the device's name.

    A device that sleeps has none yet; one that wakes up within `secret_randomness` stops the step.
    """
    awake = (*torch.cuda.default_generators, *torch.xpu.default_generators)
    known: list[torch.Generator] = [torch.default_generator, *awake]
    if torch.backends.mps.is_available():
        known.append(torch.mps._get_default_mps_generator())
    return {str(generator.device): generator for generator in known}


def device_states() -> dict[str, bytes]:
    """The state of each of `generators`."""
    return {name: _state_of(generator) for name, generator in generators().items()}


def seeds() -> dict[str, int]:
    """What each device's generator calls its seed: it changes where somebody seeds it."""
    return {name: generator.initial_seed() for name, generator in generators().items()}


def full_state(kind: str, size: int, draw: Bytes) -> bytes:
    """A generator's state in which everything that may vary is drawn.

    Args:
        kind: of device.
        size: bytes of the generator's own state.
        draw: gives so many bytes.

    Raises:
        UseError: the layout of this device's generator is not known.

    >>> len(full_state("cpu", 5056, os.urandom)), len(full_state("cuda", 16, os.urandom))
    (5056, 16)
    """
    if kind == "cpu" and size == _TORCH_CPU.size:
        (seed,) = struct.unpack("=Q", draw(8))
        # All words are used up ("left" is 1): the first draw stirs them all.
        return _TORCH_CPU.pack(
            seed, 1, 1, 0, *struct.unpack(f"={_WORDS}I", draw(4 * _WORDS)),
            0.0, 0.0, 0.0, 0, 0.0, 0,
        )  # fmt: skip
    if kind in ("cuda", "xpu") and size == _PHILOX.size:
        seed, place = struct.unpack("=QQ", draw(16))
        return _PHILOX.pack(seed, (place >> 4) << 2)  # 60 bits: it only ever rises
    if kind == "mps" and size == _MPS_BYTES:
        return draw(_MPS_BYTES)
    raise UseError(
        f"the state of a generator on {kind!r} ({size} bytes) is not known here, so that masks "
        "drawn from it could be public",
        hint="compute on cpu, cuda, xpu or mps",
    )


_lock = threading.RLock()


@dataclass(slots=True)
class _Inside:
    """What the generators within run on from, and what they call their seeds since."""

    draw: Bytes
    loaded: dict[str, int]

    @classmethod
    def begin(cls, draw: Bytes) -> _Inside:
        _load_states(draw)
        return cls(draw, seeds())

    def require_unseeded(self) -> None:
        if seeds() != self.loaded:
            raise FailureError(
                "a random number generator was seeded, or a device began to be used, while "
                "private gradients were computed: masks may have been public, so training "
                "stopped before this update",
                hint="do not seed inside the model or the loss; move the model to its device "
                "before training begins",
            )


_inside: list[_Inside] = []


@contextmanager
def secret_randomness(unsafe_key: str | None = None) -> Iterator[None]:
    """Within, all default generators run on from full states of the operating system's randomness.

    Guarantee: what a model draws from them is no function of any seed, of the cohort, or of what
    was drawn before; two times within have states of their own, and so have two processes.
    Afterwards, also after an exception, the generators are the caller's again, as if nothing had
    been drawn. Within another one this does nothing: the states of the outer one run on. Another
    thread of the process that wants one waits, since the generators are the process's.

    Args:
        unsafe_key: FOR TESTS ONLY: the states follow from this text, in their full width.

    Raises:
        FailureError: somebody seeded a generator within, or a device woke up whose generator
            has a public seed; what was computed must not be used.
        UseError: a generator's state has an unknown layout.
    """
    with _lock:
        if _inside:
            yield
            return
        before = GeneratorStates.read()
        try:
            _inside.append(_Inside.begin(_source(unsafe_key)))
            yield
            _inside[0].require_unseeded()
        finally:
            _inside.clear()
            before.load()


class StatesApart:
    """States for one unit after another, none of which another unit's pass can have set.

    Guarantee: each follows from those at the start alone, by SHAKE-256, so that what a model puts
    in their place (a seed made of tokens) ends with its unit. From equal states at the start come
    equal ones, in every process and when a sum begins again.

    Raises:
        UseError: as `GeneratorStates.read`.
    """

    def __init__(self) -> None:
        begin = GeneratorStates.read()
        root = hashlib.sha256(repr((sorted(begin.devices.items()), begin.host)).encode())
        self._source = _source(root.hexdigest())

    def load_next(self) -> None:
        """Let all default generators run on from states that nobody else's do.

        What they call their seeds stays, so that it shows where a model seeded one.
        """
        _load_states(self._source, keep_seeds=True)


@contextmanager
def known_randomness(key: str) -> Iterator[None]:
    """Within, all default generators run on from states that everybody can know.

    For made-up rows, which are nobody's, and for tests. The states from before come back.
    """
    before = GeneratorStates.read()
    try:
        _load_states(_source(key))
        yield
    finally:
        before.load()


def secretly(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """``function`` within `secret_randomness`."""

    @functools.wraps(function)
    def wrapped(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        with secret_randomness():
            return function(*args, **kwargs)

    return wrapped


def _load_states(draw: Bytes, *, keep_seeds: bool = False) -> None:
    for generator in generators().values():
        kind, now = generator.device.type, _state_of(generator)
        state = bytearray(full_state(kind, len(now), draw))
        if keep_seeds:
            state[_SEED[kind]] = now[_SEED[kind]]
        generator.set_state(torch.frombuffer(state, dtype=torch.uint8))
    np.random.set_state(("MT19937", np.frombuffer(draw(4 * _WORDS), dtype="=u4"), _WORDS, 0, 0.0))
    words = struct.unpack(f"={_WORDS}I", draw(4 * _WORDS))
    random.setstate((3, (*words, _WORDS), None))


def _source(unsafe_key: str | None) -> Bytes:
    if unsafe_key is None:
        return os.urandom
    counter = iter(range(1 << 62))
    return lambda size: hashlib.shake_256(f"{unsafe_key}/{next(counter)}".encode()).digest(size)


def _state_of(generator: torch.Generator) -> bytes:
    return generator.get_state().numpy().tobytes()


_GENERATORS: Final = (
    torch.Generator,
    np.random.Generator,
    np.random.RandomState,
    np.random.BitGenerator,
    random.Random,
)


def require_reachable_randomness(model: nn.Module) -> None:
    """Refuse a model whose random numbers are out of reach, or differ when layers are recomputed.

    Refused: a generator that a module holds; a recurrent layer on CUDA with dropout, whose masks
    cuDNN draws from a state that it keeps from call to call; activation checkpointing with
    ``preserve_rng_state=False``.

    Raises:
        UseError: names the module.
    """
    for name, module in model.named_modules():
        if any(isinstance(value, _GENERATORS) for value in vars(module).values()):
            raise UseError(
                f"{_where(name, module)} holds a random number generator of its own: what it draws "
                "for one user depends on how much it drew for others",
                hint="draw from torch's default generator, as torch.nn.functional.dropout does",
            )
        between_layers = isinstance(module, nn.RNNBase) and module.training and module.dropout > 0
        if between_layers and any(p.is_cuda for p in module.parameters()):
            raise UseError(
                f"{_where(name, module)} has dropout that cuDNN draws from a state of its own",
                hint="set its dropout to 0, or put torch.nn.Dropout between layers",
            )
        recompute = attribute(module, "_gradient_checkpointing_func")
        options: Mapping[str, Any] = getattr(recompute, "keywords", None) or {}
        if not options.get("preserve_rng_state", True):
            raise UseError(
                f"{_where(name, module)} checkpoints activations with preserve_rng_state=False: "
                "the backward pass would see other dropout masks than the forward pass",
                hint="leave preserve_rng_state out",
            )


def _where(name: str, module: nn.Module) -> str:
    return f"module {name or 'model'} ({type(module).__name__})"


def attribute(module: nn.Module, name: str) -> Any:
    """What ``getattr(module, name, None)`` answers, in a tenth of the time where there is nothing.

    A module makes an error of each name that it does not have, and a step asks for thousands.
    """
    held = vars(module)
    if name in held:
        return held[name]
    kind = type(module)
    if hasattr(kind, name) or kind.__getattr__ is not nn.Module.__getattr__:
        return getattr(module, name, None)
    # What is left of the places in which a module looks.
    if name in held["_parameters"] or name in held["_buffers"] or name in held["_modules"]:
        return getattr(module, name)
    return None
