"""The files of a released model, each bound by its digest in its run's finishing line.

A model is more than its weights. The tokenizer, the settings and a chat template hold words, and a
word that somebody put there later would leave as part of a release that an ε covers. So what lies
in RUN/model and RUN/adapter when a run ends is bound file by file, and what leaves a run later is,
byte for byte, what is bound.

One file is not: ``userdp.json``, which says what the weights descend from. It is written anew where
that is told in other words (the winner of a sweep), and is held against the ledger by what it says.
So is the same text in the metadata of weights, which the digest of a file of weights leaves out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from userdp import files
from userdp.claims.weights import LINEAGE, named_digest
from userdp.errors import UseError
from userdp.ledger.folder import RunFolder
from userdp.ledger.run import finish_of

MODEL_FILES = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
    "chat_template.jinja", "model.safetensors.index.json",
)  # fmt: skip
ADAPTER_FILES = ("adapter_config.json",)
"""What may leave beside weights. Another file, though bound, stays in the run's folder."""


def content_digest(path: Path) -> str:
    """SHA-256 of a file: of one of weights, its tensors by name; of any other, its bytes.

    Raises:
        UseError: it is a link, or a damaged file of weights.
    """
    if path.is_symlink():
        raise UseError(f"{path} is a link, and a run releases none")
    if path.suffix == ".safetensors":
        return named_digest(path)
    return files.digest_of_file(path)


def bound_files(folder: RunFolder) -> dict[str, str]:
    """What a finishing line is to bind: the digest of each file of the model and the adapter.

    Returns:
        By the place in the run's folder: ``model/config.json``.
    """
    return {place: content_digest(path) for place, path in _there(folder).items()}


def bound_in(entries: list[dict[str, Any]]) -> dict[str, str] | None:
    """What the finishing line of a ledger binds; None if it is of before files were bound."""
    found = (finish_of(entries) or {}).get("files")
    return None if found is None else {str(place): str(one) for place, one in found.items()}


def files_differ(folder: RunFolder, bound: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Each bound file that is missing, or is another one: its place, and what is wrong."""
    there = _there(folder)
    for place, digest in sorted(bound.items()):
        path = folder.path / place
        if place not in there:
            yield place, f"{path}, which the run released, is not there"
            continue
        try:
            seen = content_digest(path)
        except UseError as error:
            yield place, error.message
            continue
        if seen != digest:
            yield place, f"{path} is not the file that the run released, as its ledger says"


def unbound(folder: RunFolder, bound: Mapping[str, str]) -> list[str]:
    """The places of files that lie beside the released ones, and that no line speaks of."""
    return [place for place in _there(folder) if place not in bound]


def place_in_run(place: str) -> str:
    """Where a file of an exported folder lay in the run's."""
    return place if place.startswith("adapter/") else f"model/{place}"


def exported_places(bound: Mapping[str, str]) -> list[str]:
    """The places that bound files have in an exported folder, weights left out."""
    leaving = {f"model/{name}": name for name in MODEL_FILES}
    leaving |= {f"adapter/{name}": f"adapter/{name}" for name in ADAPTER_FILES}
    return [leaving[place] for place in bound if place in leaving]


def read_bound(path: Path, digest: str) -> bytes:
    """The bytes of a bound file, read once, so that nobody exchanges it between check and use.

    Raises:
        UseError: it is another file.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UseError(f"cannot read {path}, which the run released: {error.strerror}") from error
    if hashlib.sha256(data).hexdigest() != digest:
        raise UseError(
            f"{path} is not the file that the run released, as its ledger says",
            hint="put the released file back; `userdp verify RUN` names all that differs",
        )
    return data


def _there(folder: RunFolder) -> dict[str, Path]:
    """Every file and link under the folders of the model and the adapter, by its place."""
    return {
        path.relative_to(folder.path).as_posix(): path
        for top in (folder.model, folder.adapter)
        if top.is_dir()
        for path in sorted(top.rglob("*"))
        if path.name != LINEAGE and (path.is_symlink() or not path.is_dir())
    }
