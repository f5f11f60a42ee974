"""A model's weights: their digest, what is written beside them, and what they descend from.

A model is known by the digest of its tensors' bytes, types and shapes. Names, order, files and
metadata are not in it, so that weights that were renamed, split into other files or written again
by another library are still known. Files of safetensors are read as bytes: checking a claim needs
no torch.

Two places know what weights descend from. The ledger of a store knows the weights that runs over it
released, by their digest. And ``userdp.json`` stands beside the weights and travels with their
folder. `ancestry` asks both; whoever needs the origin of a model asks `ancestry`.
"""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from safetensors import SafetensorError, safe_open

from userdp.claims.lineage import Condition, ConditionKind, Lineage, lineage_from
from userdp.core import files
from userdp.core.codec import decode, encode, parse
from userdp.core.errors import UseError
from userdp.ledger import History, StoreLedger

LINEAGE = "userdp.json"


def weights_digest(tensors: Iterable[tuple[str, tuple[int, ...], bytes]]) -> str:
    """SHA-256 of tensors, each by its dtype, shape and the SHA-256 of its bytes.

    A tensor that is there twice (tied weights) counts once, so that it makes no difference whether
    a file holds both.

    Args:
        tensors: dtype as safetensors spells it ("F32"), shape, and the digest of the bytes, little
            endian, in C order.
    """
    lines = {f"{dtype} {list(shape)} {digest.hex()}" for dtype, shape, digest in tensors}
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()


def has_weights(folder: Path) -> bool:
    """Whether weights lie in a folder: files of safetensors."""
    return any(folder.glob("*.safetensors"))


def digest_of(folder: Path) -> str:
    """The digest of the weights in a model's folder; `UseError` if there are none, or damaged."""
    paths = sorted(folder.glob("*.safetensors"))
    if not paths:
        raise UseError(f"there are no weights in {folder}: it holds no file of safetensors")
    return weights_digest(tensor for path in paths for tensor in _tensors(path))


def _tensors(path: Path) -> Iterator[tuple[str, tuple[int, ...], bytes]]:
    """The dtype and the shape of each tensor of a file, and the digest of its bytes."""
    try:
        with safe_open(path, framework="np"), path.open("rb") as file:  # the library checks it
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        begin = 8 + int.from_bytes(data[:8], "little")
        header = parse(data[8:begin])
    except (OSError, ValueError, SafetensorError) as error:
        raise UseError(f"cannot read the weights in {path}: {error}") from error
    for name, facts in header.items():
        if name != "__metadata__":
            first, last = facts["data_offsets"]
            with memoryview(data)[begin + first : begin + last] as held:
                yield facts["dtype"], tuple(facts["shape"]), hashlib.sha256(held).digest()


# What is written beside weights.


@dataclass(frozen=True, kw_only=True, slots=True)
class Described:
    """What ``userdp.json`` says of the weights beside it.

    Args:
        lineage: what the weights descend from.
        weights: the digest of the weights that this was said of.
    """

    schema: ClassVar[str] = "userdp.lineage/2"

    lineage: Lineage
    weights: str


def describe(folder: Path, lineage: Lineage) -> str:
    """Write what the weights in ``folder`` descend from beside them; returns their digest."""
    described = Described(lineage=lineage, weights=digest_of(folder))
    files.write_json(folder / LINEAGE, encode(described))
    return described.weights


def description_of(folder: Path) -> Described | None:
    """What a model's folder says of its weights; None if nothing, `UseError` if it is damaged."""
    place = folder / LINEAGE
    if not place.exists():
        return None
    return decode(Described, files.read_json(place, what="a lineage"), what=str(place))


# What weights descend from.


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """A model that training begins from, or that a price is asked for.

    Args:
        name: of the model, or its folder; empty if nothing is known of where it is from.
        weights: the digest of its weights as they are in memory, if it is known.
        loaded: the weights were just read from ``name``, so that they are those of its files even
            where they were read in another dtype. Otherwise ``name`` is only what the model says
            of itself, and its weights may have learned from anybody since they were read.
        base: the model below, of one with adapters.
        adapters: the digest of its adapters.
        doubt: why adapters that no ledger knows may have learned from somebody; empty for new
            ones, which descend from nobody.
    """

    name: str = ""
    weights: str | None = None
    loaded: bool = False
    base: Subject | None = None
    adapters: str = ""
    doubt: str = ""


def ancestry(of: Subject, ledger: StoreLedger) -> Lineage:
    """What a model descends from, for the people of a store.

    Args:
        of: the model.
        ledger: of the store, which knows what was released of these people.

    Returns:
        What the model's folder says, and what the ledger knows of these weights. Weights that
        neither knows, or that are not those that the folder speaks of, may have learned from
        anybody: that is a condition. Base and adapters are looked up apart, unless the ledger
        knows both together.
    """
    history = ledger.history()
    if of.base is None or known_of(history, {of.weights}) is not None:
        return _of_weights(of, history)
    return _of_weights(of.base, history) + _of_adapters(of, history)


def known_of(history: History, weights: Iterable[str | None]) -> Lineage | None:
    """What a store's ledger knows of weights of these digests; None of others."""
    plain = [one.lineage for one in history.released if one.weights in weights]
    told = [lineage_from(one, what="the lineage of released weights") for one in plain]
    return sum(told, Lineage()) if told else None


def _of_weights(of: Subject, history: History) -> Lineage:
    folder = Path(of.name) if of.name and Path(of.name).is_dir() else None  # "" is the current one
    described = None if folder is None else description_of(folder)
    in_memory = {of.weights} if of.weights else set()
    on_disk = {digest_of(folder)} if folder and has_weights(folder) else set()
    lineage = Lineage() if described is None else described.lineage
    lineage += known_of(history, in_memory | on_disk) or Lineage()
    told = {one.weights for one in (*history.released, described) if one is not None}
    if told & (in_memory | on_disk if of.loaded else in_memory):
        return lineage
    changed = in_memory and on_disk and not in_memory & on_disk and not of.loaded
    kind = ConditionKind.MEMORY if changed else ConditionKind.BASE
    told_of = Path(of.name).name or "given in memory"
    return lineage + Lineage(conditions=(Condition(kind=kind, told=told_of),))


def _of_adapters(of: Subject, history: History) -> Lineage:
    known = known_of(history, {of.adapters})
    if known is None and of.doubt:
        return Lineage(conditions=(Condition(kind=ConditionKind.ADAPTERS, told=of.doubt),))
    return known or Lineage()
