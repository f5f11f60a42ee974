"""`Combination`: what a self-check hangs on; and the file that remembers those that passed.

``XDG_CACHE_HOME/userdp/checks.json`` (``~/.cache`` by default; mode 0600) holds digests of
combinations that passed on this machine, and nothing else. A file that is damaged, that somebody
else could write to, or that cannot be written, only means that the check is made again.
"""

from __future__ import annotations

import functools
import hashlib
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

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
        userdp: its version, and a digest of when its code was written.
        model: digest of `shape_of_model`.
        loss: where its code lies, and whether it is given targets.
        engine: by name, with the most rows of a pass.
        clip: form, split, clip of rows, adaptation.
        sampling: its kind and constants.
        noise: the kind of law.
        processes: how many.
        sharded: whether each holds a part of the model.
    """

    machine: str
    device: str
    threads: int
    precisions: tuple[str, ...]
    torch: str
    userdp: str
    model: str
    loss: str
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
        f"{name} {type(module).__module__}.{type(module).__qualname__} "
        f"{sorted((k, v) for k, v in vars(module).items() if isinstance(v, bool | float | str))}"
        for name, module in model.named_modules()
    ]
    told += [
        f"{name} {tuple(p.shape)} {p.dtype} {p.requires_grad}"
        for name, p in model.named_parameters(remove_duplicate=False)
    ]
    return hashlib.sha256("\n".join(told).encode()).hexdigest()


@functools.cache
def code() -> str:
    """SHA-256 of the places, sizes and times of this package's files: code that was edited is new.

    >>> code() == code()
    True
    """
    told = []
    for path in sorted(Path(userdp.__file__).parent.rglob("*.py")):
        found = path.stat()
        told.append(f"{path} {found.st_size} {found.st_mtime_ns}")
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
