"""A model by its weights: their digest, what is written beside them, and what they descend from.

The digest is of the tensors alone: not of their names, their order, the files they lie in or what
is noted beside them, so that weights that were copied, renamed, split into other files or written
again by another library are still known. safetensors is read here as bytes: no torch is needed to
check a claim.

What weights descend from is known in two places: to the store's ledger, by the digest of what runs
over it released; and beside the weights, where it is written twice: in ``userdp.json``, and in the
metadata of each file of weights, for whoever copies nothing else. `ancestry` asks all of them, and
whoever needs the origin of a model asks `ancestry`.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from safetensors import SafetensorError, safe_open

from userdp.claims.lineage import Lineage, lineage_from
from userdp.claims.parts import Condition, ConditionKind
from userdp.core import files
from userdp.core.codec import parse
from userdp.core.errors import UseError
from userdp.ledger import History, StoreLedger

LINEAGE = "userdp.json"
SCHEMA = "userdp.lineage/1"
_KEY, _METADATA = "userdp", "__metadata__"
_BLOCK = 1 << 22


def weights_digest(tensors: Iterable[tuple[str, tuple[int, ...], bytes]]) -> str:
    """SHA-256 of tensors, each by its dtype, shape and the SHA-256 of its bytes.

    A tensor that is there twice (tied weights) counts once, so that it makes no difference whether
    a file holds both.

    Args:
        tensors: dtype as safetensors spells it ("F32"), shape, and the digest of the bytes, little
            endian, in C order.
    """
    lines = {f"{dtype} {list(shape)} {digest.hex()}" for dtype, shape, digest in tensors}
    return _digest_of_lines(lines)


def digest_of(folder: Path) -> str:
    """The digest of the weights in a model's folder; `UseError` if there are none, or damaged."""
    paths = _files(folder)
    if not paths:
        raise UseError(f"there are no weights in {folder}: it holds no file of safetensors")
    return weights_digest(one for path in paths for _, one in _tensors(path))


def named_digest(path: Path) -> str:
    """The digest of one file of weights: of its tensors with their names.

    What a model computes depends on which tensor has which name, and a name can be any word; so
    this is what a ledger binds of a file. Its metadata and its layout are not in it.
    """
    return _digest_of_lines(
        json.dumps([name, dtype, list(shape), digest.hex()])
        for name, (dtype, shape, digest) in _tensors(path)
    )


def _digest_of_lines(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()


# What is written beside weights.


@dataclass(frozen=True, kw_only=True, slots=True)
class Described:
    """What is said of weights in one place.

    Args:
        lineage: what they descend from.
        weights: the digest of the weights that this was said of.
    """

    lineage: Lineage
    weights: str

    @property
    def plain(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return {"schema": SCHEMA, "weights": self.weights, "lineage": self.lineage.plain}


def describe(folder: Path, lineage: Lineage) -> str:
    """Write what the weights in ``folder`` descend from, beside them and in their metadata.

    Returns:
        The digest of the weights.
    """
    described = Described(lineage=lineage, weights=digest_of(folder))
    text = json.dumps(described.plain, separators=(",", ":"), sort_keys=True)
    for path in _files(folder):
        known = read_header(path)[0].get(_METADATA, {})
        copy_tensors(path, path, metadata={**known, _KEY: text})
    files.write_json(folder / LINEAGE, described.plain)
    return described.weights


def descriptions_of(folder: Path) -> dict[Path, Described | None]:
    """What ``userdp.json`` and the metadata of each file of weights say; None of what is silent.

    Raises:
        UseError: what is said is damaged.
    """
    beside = folder / LINEAGE
    said = {beside: files.read_json(beside, what="a lineage") if beside.exists() else None}
    for path in _files(folder):
        text = read_header(path)[0].get(_METADATA, {}).get(_KEY)
        try:
            said[path] = None if text is None else parse(text)
        except ValueError as error:
            raise UseError(f"the metadata of {path} is damaged: {error}") from error
    return {at: None if values is None else _described(values, at) for at, values in said.items()}


def description_of(folder: Path) -> Described | None:
    """What a model's folder says of its weights, by either of the two; None if it says nothing.

    Where both say something and differ, both count: neither can be dropped by writing the other.

    Raises:
        UseError: what is said is damaged.
    """
    told = [described for described in descriptions_of(folder).values() if described is not None]
    if not told:
        return None
    first, *others = dict.fromkeys(one.lineage for one in told)
    return Described(lineage=sum(others, first), weights=told[0].weights)


def _described(values: Any, where: Path) -> Described:
    if not isinstance(values, dict) or values.get("schema") != SCHEMA:
        raise UseError(f"what {where} says of its weights is not of schema {SCHEMA}")
    lineage = lineage_from(values.get("lineage"), what=f"the lineage in {where}")
    return Described(lineage=lineage, weights=str(values.get("weights")))


# What weights descend from.


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """Weights that training begins from, a price is asked for, or a claim is about.

    Args:
        name: of the model, or its folder; empty if nothing is known of where it is from.
        weights: the digest of its weights as they are in memory, if it is known.
        loaded: the weights were just read from ``name``, so that they are those of its files even
            where they were read in another dtype. Otherwise ``name`` is only what the model says
            of itself, and its weights may have learned from anybody since they were read.
        called: the model's name in a condition; by default the folder's own.
        base: the model below, of one with adapters.
        adapters: the digest of its adapters.
        doubt: why adapters that no ledger knows may have learned from somebody; empty of new ones,
            which descend from nobody.
    """

    name: str = ""
    weights: str | None = None
    loaded: bool = False
    called: str = ""
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
        anybody: a condition, which says whether the files hold these weights. Of a model with
        adapters base and adapters are asked apart, unless the ledger knows both together.
    """
    history = ledger.history()
    if of.base is None or of.weights in {one.weights for one in history.released}:
        lineage = _of_weights(of, history)
    else:
        lineage = _of_weights(of.base, history) + _of_adapters(of, history)
    return lineage.among(history.id, history.ids)


def known_of(history: History, weights: Iterable[str]) -> Lineage | None:
    """What a store's ledger knows of weights of these digests; None of others."""
    plain = [one.lineage for one in history.released if one.weights in weights]
    told = [lineage_from(one, what="the lineage of released weights") for one in plain]
    return sum(told, Lineage()) if told else None


def _of_weights(of: Subject, history: History) -> Lineage:
    folder = Path(of.name) if of.name and Path(of.name).is_dir() else None  # "" is the current one
    described = None if folder is None else description_of(folder)
    in_memory = {of.weights} if of.weights else set()
    on_disk = {digest_of(folder)} if folder is not None and _files(folder) else set()
    lineage = Lineage() if described is None else described.lineage
    lineage += known_of(history, in_memory | on_disk) or Lineage()
    told = {one.weights for one in history.released}
    told |= set() if described is None else {described.weights}
    if told & (in_memory | on_disk if of.loaded else in_memory):
        return lineage
    changed = in_memory and on_disk and not in_memory & on_disk and not of.loaded
    kind = ConditionKind.MEMORY if changed else ConditionKind.BASE
    called = of.called or Path(of.name).name or "given in memory"
    return lineage + Lineage(conditions=(Condition(kind=kind, told=called),))


def _of_adapters(of: Subject, history: History) -> Lineage:
    known = known_of(history, {of.adapters})
    if known is None and of.doubt:
        return Lineage(conditions=(Condition(kind=ConditionKind.ADAPTERS, told=of.doubt),))
    return known or Lineage()


# Files of safetensors, as bytes.


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def _tensors(path: Path) -> Iterator[tuple[str, tuple[str, tuple[int, ...], bytes]]]:
    """Each tensor's name; and its dtype, its shape and the digest of its bytes."""
    header, begin = read_header(path)
    with path.open("rb") as file:
        for name, facts in header.items():
            if name != _METADATA:
                first, last = facts["data_offsets"]
                file.seek(begin + first)
                yield name, (facts["dtype"], tuple(facts["shape"]), _sha256(file, last - first))


def _sha256(file: BinaryIO, size: int) -> bytes:
    digest = hashlib.sha256()
    while block := file.read(min(size, _BLOCK)):
        digest.update(block)
        size -= len(block)
    return digest.digest()


def read_header(path: Path) -> tuple[dict[str, Any], int]:
    """The header of a file of safetensors, and where its tensors begin.

    Raises:
        UseError: the file is damaged, or holds something besides tensors.
    """
    try:
        with safe_open(path, framework="np"), path.open("rb") as file:  # the library checks it
            (size,) = struct.unpack("<Q", file.read(8))
            return parse(file.read(size)), 8 + size
    except (OSError, ValueError, SafetensorError) as error:
        raise UseError(f"cannot read the weights in {path}: {error}") from error


def copy_tensors(source: Path, target: Path, *, metadata: Mapping[str, str]) -> None:
    """Write the tensors of a file of weights, and no words but their names and ``metadata``.

    Args:
        source: of safetensors.
        target: may be the same file.
        metadata: by name, as safetensors has it.

    Raises:
        UseError: the file is damaged.
    """
    header, begin = read_header(source)
    tensors = {
        name: {key: facts[key] for key in ("dtype", "shape", "data_offsets")}
        for name, facts in header.items()
        if name != _METADATA
    }
    text = json.dumps({_METADATA: dict(metadata), **tensors}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors are aligned
    with source.open("rb") as origin, files.whole_file(target) as copy:
        copy.write(struct.pack("<Q", len(text)) + text)
        origin.seek(begin)
        shutil.copyfileobj(origin, copy, _BLOCK)
