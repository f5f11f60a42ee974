"""Weights by their digest, and what a model's folder says that they descend from.

The digest is of the tensors alone: not of their names, their order, the files they lie in or what
is noted beside them, so that weights that were copied, renamed, split into other files or written
again by another library are still known. safetensors is read here as bytes: no torch is needed to
check a claim.

What weights descend from is written twice: in ``userdp.json`` beside them, and in the metadata of
each file of weights, for whoever copies nothing else.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from userdp.claims.lineage import Lineage, lineage_from
from userdp.claims.parts import Condition, ConditionKind
from userdp.core import files
from userdp.core.codec import decode
from userdp.core.errors import UseError
from userdp.core.strict_json import parse

LINEAGE = "userdp.json"
SCHEMA = "userdp.lineage/1"
_KEY, _METADATA = "userdp", "__metadata__"
_BLOCK = 1 << 22
_MOST_HEADER = 100 << 20  # safetensors' own bound


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


def digest_of(folder: Path) -> str:
    """The digest of the weights in a model's folder.

    Raises:
        UseError: there are none, or a file is damaged.
    """
    return weights_digest(one for path in _files(folder) for _, one in _tensors(path))


def named_digest(path: Path) -> str:
    """The digest of one file of weights: of its tensors with their names.

    What a model computes depends on which tensor has which name, and a name can be any word; so
    this is what a ledger binds of a file. Its metadata and its layout are not in it.

    Raises:
        UseError: the file is damaged.
    """
    lines = [
        json.dumps([name, dtype, list(shape), digest.hex()])
        for name, (dtype, shape, digest) in _tensors(path)
    ]
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()


@dataclass(frozen=True, kw_only=True, slots=True)
class Described:
    """What a model's folder says of its weights.

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


def description_of(folder: Path) -> Described | None:
    """What a model's folder says of its weights, by either of the two; None if it says nothing.

    Where both say something and differ, both count: neither can be dropped by writing the other.

    Raises:
        UseError: what is said is damaged.
    """
    told = [described for _, described in descriptions_of(folder) if described is not None]
    if not told:
        return None
    lineage = Lineage()
    for one in told:
        lineage = one.lineage + lineage if one.lineage != lineage else lineage
    return Described(lineage=lineage, weights=told[0].weights)


def descriptions_of(folder: Path) -> list[tuple[Path, Described | None]]:
    """What ``userdp.json`` and the metadata of each file of weights say; None of what is silent.

    Raises:
        UseError: what is said is damaged.
    """
    beside = folder / LINEAGE
    told: list[tuple[Path, Described | None]] = [(beside, None)]
    if beside.exists():
        told = [(beside, _described(files.read_json(beside, what="a lineage"), beside))]
    for path in _files(folder, required=False):
        text = read_header(path)[0].get(_METADATA, {}).get(_KEY)
        try:
            told.append((path, None if text is None else _described(parse(text), path)))
        except ValueError as error:
            raise UseError(f"the metadata of {path} is damaged: {error}") from error
    return told


def lineage_of_base(
    name: str,
    weights: str | None,
    released: Iterable[tuple[str, Any]],
    *,
    loaded: bool,
    called: str = "",
) -> Lineage:
    """What a model that training begins from descends from.

    Args:
        name: of the model, or its folder; empty if nothing is known of where it is from.
        weights: the digest of its weights as they are in memory, if it is known.
        released: of the store that is trained on: digests of weights that runs over it released,
            and what those descend from, as plain values.
        loaded: the weights were just read from ``name``, so that they are those of its files even
            where they were read in another dtype. Otherwise ``name`` is only what the model says
            of itself, and its weights may have learned from anybody since they were read.
        called: the model's name in a condition; by default the folder's own.

    Returns:
        What the folder says, and what the store's ledger knows of these weights. Weights that
        neither knows, or that are not those that the folder speaks of, may have learned from
        anybody: a condition, which says whether the files hold these weights.
    """
    folder = Path(name) if name and Path(name).is_dir() else None  # "" would be the current folder
    described = None if folder is None else description_of(folder)
    files_there = folder is not None and _files(folder, required=False)
    on_disk = {digest_of(folder)} if folder is not None and files_there else set()
    in_memory = {weights} if weights else set()
    sure = in_memory | on_disk if loaded else in_memory
    lineage = Lineage() if described is None else described.lineage
    known = described is not None and described.weights in sure
    for digest, plain in released:
        if digest in in_memory | on_disk:
            lineage += lineage_from(plain, what="the lineage of a base model")
            known = known or digest in sure
    if not known:
        changed = in_memory and on_disk and not in_memory & on_disk and not loaded
        kind = ConditionKind.MEMORY if changed else ConditionKind.BASE
        named = called or Path(name).name or "given in memory"
        lineage += Lineage(conditions=(Condition(kind=kind, told=named),))
    return lineage


def _described(values: Any, where: Path) -> Described:
    if not isinstance(values, dict) or values.get("schema") != SCHEMA:
        raise UseError(f"what {where} says of its weights is not of schema {SCHEMA}")
    lineage = lineage_from(values.get("lineage"), what=f"the lineage in {where}")
    return Described(lineage=lineage, weights=str(values.get("weights")))


def _files(folder: Path, *, required: bool = True) -> list[Path]:
    paths = sorted(folder.glob("*.safetensors"))
    if required and not paths:
        raise UseError(f"there are no weights in {folder}: it holds no file of safetensors")
    return paths


def _tensors(path: Path) -> Iterator[tuple[str, tuple[str, tuple[int, ...], bytes]]]:
    """Each tensor's name; and its dtype, its shape and the digest of its bytes."""
    header, begin = read_header(path)
    with path.open("rb") as file:
        for name, facts in header.items():
            if name == _METADATA:
                continue
            first, last = facts["data_offsets"]
            file.seek(begin + first)
            digest = _sha256(file, last - first, path)
            yield name, (facts["dtype"], tuple(facts["shape"]), digest)


def _sha256(file: BinaryIO, size: int, path: Path) -> bytes:
    digest = hashlib.sha256()
    while size:
        block = file.read(min(size, _BLOCK))
        if not block:
            raise UseError(f"{path} is damaged: it ends within a tensor")
        digest.update(block)
        size -= len(block)
    return digest.digest()


def read_header(path: Path) -> tuple[dict[str, Any], int]:
    """The header of a file of safetensors, and where its tensors begin."""
    try:
        with path.open("rb") as file:
            (size,) = struct.unpack("<Q", file.read(8))
            if size > _MOST_HEADER:
                raise UseError(f"{path} is damaged: its header has {size} bytes")
            header = parse(file.read(size))
            length = os.fstat(file.fileno()).st_size - 8 - size
    except (OSError, ValueError, struct.error) as error:
        raise UseError(f"cannot read the weights in {path}: {error}") from error
    if not isinstance(header, dict):
        raise UseError(f"{path} is damaged: its header is no object")
    _require_header(path, header, length)
    return header, 8 + size


def _require_header(path: Path, header: Mapping[str, Any], length: int) -> None:
    """`UseError` unless each tensor of a header is one, and lies in so many bytes of the file."""
    for name, facts in header.items():
        at = f"{name!r:.80} in {path}"
        if name == _METADATA:
            decode(dict[str, str], facts, what=at)
            continue
        kept = decode(dict[str, Any], facts, what=at)
        decode(str, kept.get("dtype"), what=f"the dtype of {at}")
        shape = decode(tuple[int, ...], kept.get("shape"), what=f"the shape of {at}")
        places = decode(tuple[int, ...], kept.get("data_offsets"), what=f"the place of {at}")
        inside = len(places) == 2 and 0 <= places[0] <= places[1] <= length
        if not inside or min(shape, default=0) < 0:
            raise UseError(f"{path} is damaged: {name!r:.80} does not lie in it")


def copy_tensors(source: Path, target: Path, *, metadata: Mapping[str, str]) -> None:
    """Write the tensors of a file of weights, one after another, and no words but ``metadata``.

    Args:
        source: of safetensors.
        target: may be the same file.
        metadata: by name, as safetensors has it.

    Raises:
        UseError: the file is damaged.
    """
    header, begin = read_header(source)
    spans = {one: tuple(header[one]["data_offsets"]) for one in header if one != _METADATA}
    ordered, written, end = sorted(spans, key=lambda name: spans[name]), {}, 0
    for name in ordered:
        first, last = spans[name]
        facts = {key: header[name][key] for key in ("dtype", "shape")}
        written[name] = {**facts, "data_offsets": [end, end + last - first]}
        end += last - first
    text = json.dumps({_METADATA: dict(metadata), **written}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors are aligned
    with source.open("rb") as origin, files.whole_file(target) as copy:
        copy.write(struct.pack("<Q", len(text)) + text)
        for name in ordered:
            first, last = spans[name]
            origin.seek(begin + first)
            while first < last and (block := origin.read(min(last - first, _BLOCK))):
                copy.write(block)
                first += len(block)
