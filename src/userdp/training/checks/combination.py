"""`Combination`: what a self-check hangs on; and the file that remembers those that passed.

``XDG_CACHE_HOME/userdp/checks.json`` (``~/.cache`` by default; mode 0600) holds digests of
combinations that passed on this machine, and nothing else. A file that is damaged, that somebody
else could write to, or that cannot be written, only means that the check is made again.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import os
import stat
import sys
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

import torch
from torch import nn

import userdp
from userdp import files
from userdp.codec import decode, digest, encode
from userdp.errors import FailureError, UseError

_MOST = 512
"""Combinations that are remembered; the oldest go."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Combination:
    """What decides whether the mechanism is right here; none of it is anybody's data.

    Args:
        machine: its name.
        device: kind and name.
        threads: of a CPU.
        precisions: that the model computes in.
        torch: its version.
        libraries: versions of others that compute or draw.
        settings: of torch, by which it chooses kernels.
        userdp: its version, and a digest of its code.
        model: digest of `shape_of_model`.
        loss: where its code lies, what it is (`code_of`), and whether it is given targets.
        hooks: what the code of the model's hooks is.
        engine: by name, with the most rows of a pass.
        clip: form, split, clip of rows, adaptation.
        sampling: its kind and constants.
        noise: the kind of law, and its order of magnitude.
        processes: how many.
        sharded: whether each holds a part of the model.
    """

    machine: str
    device: str
    threads: int
    precisions: tuple[str, ...]
    torch: str
    libraries: tuple[str, ...]
    settings: str
    userdp: str
    model: str
    loss: str
    hooks: tuple[str, ...]
    engine: str
    clip: str
    sampling: str
    noise: str
    processes: int
    sharded: bool

    @property
    def digest(self) -> str:
        """SHA-256 of all of it."""
        return digest(self)


def shape_of_model(model: nn.Module) -> str:
    """SHA-256 of a model's modules with their settings, and of its parameters but for their values.

    Whole numbers among the settings are left out: some modules count their calls.
    """
    told = [
        f"{name} {type(module).__module__}.{type(module).__qualname__} {code_of(type(module))} "
        f"{sorted((k, v) for k, v in vars(module).items() if isinstance(v, bool | float | str))}"
        for name, module in model.named_modules()
    ]
    told += [
        f"{name} {tuple(p.shape)} {p.dtype} {p.requires_grad}"
        for name, p in model.named_parameters(remove_duplicate=False)
    ]
    return hashlib.sha256("\n".join(told).encode()).hexdigest()


def code_of(called: object) -> str:
    """SHA-256 of the code of a function, of a class and those above it, or of an object's class.

    Two functions of one name are two, such as those of a cell of a notebook before and after it
    was edited. What they call in turn is not looked at.

    >>> def double(x):
    ...     return 2 * x
    >>> code_of(double) == code_of(functools.partial(double)) != code_of(code_of)
    True
    """
    while isinstance(called, functools.partial):
        called = called.func
    called = getattr(called, "__func__", called)
    called = getattr(called, "__wrapped__", called)
    if isinstance(called, types.FunctionType):
        return hashlib.sha256("\n".join(_told(called.__code__)).encode()).hexdigest()
    return _code_of_class(called if isinstance(called, type) else type(called))


@functools.cache
def _code_of_class(kind: type) -> str:
    told = []
    for base in kind.__mro__:
        if not base.__module__.startswith("torch."):  # told by its version
            for name, part in sorted(vars(base).items()):
                function = inspect.unwrap(getattr(part, "__func__", part))
                if isinstance(function, types.FunctionType):
                    told += [name, *_told(function.__code__)]
    return hashlib.sha256("\n".join(told).encode()).hexdigest()


def _told(code: types.CodeType) -> Iterator[str]:
    """What a code object does, alike in all processes (the order of sets is not)."""
    yield code.co_code.hex()
    yield repr((code.co_names, code.co_varnames, code.co_freevars))
    for one in code.co_consts:
        if isinstance(one, types.CodeType):
            yield from _told(one)
        else:
            yield repr(sorted(map(repr, one)) if isinstance(one, frozenset) else one)


_COMPUTING: Final = ("numpy", "scipy", "transformers", "peft", "bitsandbytes")


def libraries() -> tuple[str, ...]:
    """Versions of the libraries by which a model computes, as far as they are loaded."""
    loaded = [name for name in _COMPUTING if name in sys.modules]
    return tuple(f"{name} {getattr(sys.modules[name], '__version__', '')}" for name in loaded)


def settings() -> str:
    """What somebody may have told torch by which it chooses kernels and their precision."""
    back = torch.backends
    c: Any = back.cuda  # some of its functions have no types
    return str(
        (
            torch.get_default_dtype(),
            torch.get_float32_matmul_precision(),
            back.cuda.matmul.allow_fp16_reduced_precision_reduction,
            back.cuda.matmul.allow_bf16_reduced_precision_reduction,
            back.cudnn.allow_tf32,
            back.cudnn.benchmark,
            torch.are_deterministic_algorithms_enabled(),
            back.mkldnn.enabled,
            [
                ask()
                for ask in (c.flash_sdp_enabled, c.mem_efficient_sdp_enabled, c.math_sdp_enabled)
            ],
        )
    )


@functools.cache
def code() -> str:
    """SHA-256 of this package's files, their places and what they say: code that was edited is new.

    Sizes and times would not do: installers that build reproducibly give all files one time.

    >>> code() == code()
    True
    """
    told = [
        f"{path} {hashlib.sha256(path.read_bytes()).hexdigest()}"
        for path in sorted(Path(userdp.__file__).parent.rglob("*.py"))
    ]
    return hashlib.sha256("\n".join(told).encode()).hexdigest()


@dataclass(frozen=True, kw_only=True, slots=True)
class _Passed:
    """What the file holds."""

    schema: ClassVar[str] = "userdp.checks/1"

    passed: tuple[str, ...] = ()


def place() -> Path:
    """Where combinations that passed are remembered."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    folder = Path(given) if Path(given).is_absolute() else Path.home() / ".cache"
    return folder / "userdp" / "checks.json"


def passed_earlier(combination: Combination) -> bool:
    """Whether this combination is remembered."""
    return combination.digest in _read()


def remember(combination: Combination) -> None:
    """Remember that this combination passed, if the file can be written."""
    known = [one for one in _read() if one != combination.digest]
    kept = _Passed(passed=(*known, combination.digest)[-_MOST:])
    values: Mapping[str, object] = encode(kept)
    try:
        files.operator_folder(place().parent)
        files.write_json(place(), values, mode=files.OPERATOR_FILE)
    except (OSError, RuntimeError, FailureError, UseError):  # RuntimeError: there is no home
        return


def _read() -> tuple[str, ...]:
    """The digests that are remembered; none of a file that another user may have written."""
    try:
        path = place()
        found = path.stat()
        if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & ~files.OPERATOR_FILE:
            return ()
        return decode(_Passed, files.read_json(path, what="a file"), what="a file").passed
    except (OSError, RuntimeError, UseError):
        return ()
