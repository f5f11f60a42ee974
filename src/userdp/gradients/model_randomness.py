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
by unit. A generator of the model's own is refused where a module holds it
(`userdp.gradients.models`), and denies the certificate where it is an argument.

**What gives 2.** A unit's masks are those of its place in its pass, drawn once. What is computed
twice in passes (a unit whose pass raised an error, or held an infinity) begins from the states of
the first time, in the same place of a pass of the same shape (`engines.batched`); recomputation
under activation checkpointing keeps its states. Where memory ran out, all begins anew from the
first states (`engines.engine`). A unit that is computed alone, since its pass strayed or float32
cannot hold its norm, has fresh states for norm and gradient: R_v is then the pair of the first
masks and these, which are independent of everybody else's too, and f is bounded at each.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from userdp.core.errors import FailureError

_WORDS = 624  # of a mt19937 state
_TORCH_BYTES, _TORCH_WORDS = 5056, slice(24, 24 + 8 * _WORDS)
"""How long torch's state on the CPU is, and where its words are, each in 64 bits."""

Bytes = Callable[[int], bytes]


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
    numpy: tuple[Any, ...]
    python: tuple[Any, ...]

    @classmethod
    def read(cls) -> GeneratorStates:
        """As they are now."""
        legacy: Any = np.random.get_state()
        kind, words, *rest = legacy
        devices = {name: one.get_state().numpy().tobytes() for name, one in generators().items()}
        return cls(devices, (kind, words.tobytes(), *rest), random.getstate())

    def load(self) -> None:
        """Make them so again."""
        here = generators()
        for device, state in self.devices.items():
            here[device].set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
        name, words, *rest = self.numpy
        np.random.set_state((name, np.frombuffer(words, dtype=np.uint32), *rest))
        random.setstate(self.python)


def generators() -> dict[str, torch.Generator]:
    """The default generator of each device that is awake, by the device's name.

    A device that sleeps has none yet; one that wakes up within `secret_randomness` stops the step.
    """
    awake = (*torch.cuda.default_generators, *torch.xpu.default_generators)
    return {str(generator.device): generator for generator in (torch.default_generator, *awake)}


def seeds() -> dict[str, int]:
    """What each device's generator calls its seed: it changes where somebody seeds it."""
    return {device: generator.initial_seed() for device, generator in generators().items()}


_lock = threading.RLock()
_begun: list[dict[str, int]] = []
"""What the generators within `secret_randomness` called their seeds when it began."""


@contextmanager
def secret_randomness(unsafe_key: str | None = None) -> Iterator[None]:
    """Within, all default generators run on from full states of the operating system's randomness.

    Guarantee: what a model draws from them is no function of any seed, of the cohort, or of what
    was drawn before; two times within have states of their own, and so have two processes.
    Afterwards, also after an exception, the generators are the caller's again, as if nothing had
    been drawn. Within another one this does nothing: the states of the outer one run on. Another
    thread of the process that wants one waits, since the generators are the process's.
    ``@secret_randomness()`` runs a whole function within.

    Args:
        unsafe_key: FOR TESTS ONLY: the states follow from this text, in their full width.

    Raises:
        FailureError: somebody seeded a generator within, or a device woke up whose generator
            has a public seed; what was computed must not be used.
    """
    with _lock:
        if _begun:
            yield
            return
        before = GeneratorStates.read()
        try:
            _load_states(_source(unsafe_key))
            _begun.append(seeds())
            yield
            if seeds() != _begun[0]:
                raise FailureError(
                    "a random number generator was seeded, or a device began to be used, while "
                    "private gradients were computed: masks may have been public, so training "
                    "stopped before this update",
                    hint="do not seed inside the model or the loss; move the model to its device "
                    "before training begins",
                )
        finally:
            _begun.clear()
            before.load()


class StatesApart:
    """States for one unit after another, none of which another unit's pass can have set.

    Guarantee: each follows from those at the start alone, by SHAKE-256, so that what a model puts
    in their place (a seed made of tokens) ends with its unit. From equal states at the start come
    equal ones, in every process and when a sum begins again.
    """

    def __init__(self) -> None:
        self._source = _source(hashlib.sha256(repr(GeneratorStates.read()).encode()).hexdigest())

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


def _load_states(draw: Bytes, *, keep_seeds: bool = False) -> None:
    """Draw everything that may vary in the states: 19,937 bits of a mt19937, 124 of a Philox."""
    for generator in generators().values():
        seed = generator.initial_seed() if keep_seeds else int.from_bytes(draw(8))
        generator.manual_seed(seed)  # lets go of half-used pairs of normal numbers too
        if generator.device.type == "cpu":  # which keeps 32 bits of its seed
            state = generator.get_state()
            assert len(state) == _TORCH_BYTES, "torch lays its state out in another way"
            state.numpy()[_TORCH_WORDS].view(np.uint64)[:] = _words(draw)
            generator.set_state(state)
        else:  # Philox: the seed is the key, and the place only ever rises
            generator.set_offset((int.from_bytes(draw(8)) >> 4) << 2)
    np.random.set_state(("MT19937", _words(draw), _WORDS, 0, 0.0))
    random.setstate((3, (*_words(draw).tolist(), _WORDS), None))


def _words(draw: Bytes) -> NDArray[np.uint32]:
    return np.frombuffer(draw(4 * _WORDS), dtype=np.uint32)


def _source(unsafe_key: str | None) -> Bytes:
    if unsafe_key is None:
        return os.urandom
    counter = itertools.count()
    return lambda size: hashlib.shake_256(f"{unsafe_key}/{next(counter)}".encode()).digest(size)
