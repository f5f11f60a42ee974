"""Weights copied for others: the tensors, and nothing else that a file may hold.

The digest of weights (`userdp.claims.weights`) is of the tensors alone. Metadata, gaps between
tensors and bytes after the last one are not in it, nor in what a ledger binds of each file
(`userdp.claims.bound`), so that whatever stands there was bound by nobody, and does not go along.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from userdp import files
from userdp.claims.bound import read_bound
from userdp.claims.lineage import Lineage
from userdp.claims.weights import describe, digest_of, read_header
from userdp.errors import UseError

_FILE = re.compile(r"(adapter_)?model(-\d{5}-of-\d{5})?\.safetensors")
_NAME = re.compile(r"[A-Za-z0-9_.\-]{1,256}")
_BLOCK = 1 << 22


def require_no_links(paths: Iterable[Path]) -> None:
    """Refuse links: what lies behind one is not what a folder's owner thinks to hand on.

    Raises:
        UseError: names the first one.
    """
    for path in paths:
        if path.is_symlink():
            raise UseError(
                f"{path} is a link to {str(path.readlink())!r}: what it points to may be anything, "
                "so that no link is followed into a folder that others will read",
                hint="put the file itself in its place",
            )


def copy_bound(
    source: Path, target: Path, names: Iterable[str], *, bound: Mapping[str, str]
) -> None:
    """Copy what may leave of the small files of a released model or adapter.

    Guarantee: each file that is written has the digest in ``bound``.

    Args:
        source: the folder of the model or of the adapter, in a run's.
        target: where to write.
        names: of the files that may leave.
        bound: SHA-256 by name, of the run's finishing line; a file that it does not name stays.

    Raises:
        UseError: a file is missing, is a link or is another one than the run released.
    """
    for name in names:
        if name in bound:
            require_no_links([source / name])
            files.write_file(target / name, read_bound(source / name, bound[name]))


def copy_weights(source: Path, target: Path, *, lineage: Lineage, only: str) -> list[Path]:
    """Copy the weights of a model or adapter, tensor by tensor, with what they descend from.

    Guarantee: the digest of what was *written* is ``only``; nothing but tensors, their names and
    ``lineage`` is in the files.

    Args:
        source: a folder of a run, with ``*.safetensors``.
        target: a folder that nobody else writes to.
        lineage: what the weights descend from, by the run's ledger.
        only: the digest in the ledger's finishing line.

    Returns:
        The files of ``target``.

    Raises:
        UseError: the weights are others, a file is damaged, or there is a link.
    """
    found = sorted(source.glob("*.safetensors"))
    require_no_links([source, *found])
    _refuse_other_names(found)
    for path in found:
        _copy_tensors(path, target / path.name)
    if not found or digest_of(target) != only:
        raise UseError(
            f"the weights in {source} are not those that the run released, as the last lines of "
            "its ledger say: the claim of the run is of other weights, and nothing was exported",
            hint="put the released weights back; `userdp verify RUN` names all that differs",
        )
    describe(target, lineage)
    return sorted(target.glob("*.safetensors"))


def _refuse_other_names(found: list[Path]) -> None:
    """A second file of the same tensors changes no digest, and could be called anything."""
    for path in found:
        if not _FILE.fullmatch(path.name):
            raise UseError(
                f"{path} is called as no file of released weights is: nobody knows whose it is",
                hint="remove it; released are model.safetensors, and adapter_model.safetensors",
            )


def _copy_tensors(source: Path, target: Path) -> None:
    """Write the tensors of a file one after another."""
    try:
        header, begin = read_header(source)
        facts = {name: one for name, one in header.items() if name != "__metadata__"}
        spans = {name: (int(one["data_offsets"][0]), int(one["data_offsets"][1])) for name, one
                 in facts.items()}  # fmt: skip
        clean: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        end = 0
        for name in sorted(facts, key=lambda one: spans[one]):
            first, last = spans[name]
            if not _NAME.fullmatch(name) or not 0 <= first <= last:
                raise ValueError(f"a tensor is called {name[:80]!r} and lies at {first} to {last}")
            one = facts[name]
            place = [end, end + last - first]
            shape = [int(length) for length in one["shape"]]
            clean[name] = {"dtype": str(one["dtype"]), "shape": shape, "data_offsets": place}
            end += last - first
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise UseError(f"{source} is damaged, or is no file of safetensors: {error}") from error
    encoded = json.dumps(clean, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)  # tensors are aligned
    with source.open("rb") as origin, files.whole_file(target) as copy:
        copy.write(struct.pack("<Q", len(encoded)) + encoded)
        for name in clean:
            if name != "__metadata__":
                first, last = spans[name]
                origin.seek(begin + first)
                while first < last and (block := origin.read(min(last - first, _BLOCK))):
                    copy.write(block)
                    first += len(block)
