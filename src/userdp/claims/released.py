"""The files that a run released: bound by its ledger, compared, and copied for others.

A model is more than its weights. The tokenizer, the settings and a chat template hold words, and a
word that somebody put there later would leave as part of a release that an ε covers. So what lies
in RUN/model and RUN/adapter when a run ends is bound file by file in the ledger's finishing line,
and what leaves a run later is, byte for byte, what is bound. Of a file of weights the tensors and
their names are bound: whatever else stands in it was bound by nobody, and does not go along.

One file is not bound: ``userdp.json``, which says what the weights descend from. It is written anew
where that is told in other words (the winner of a tuning), and is held against the ledger by what
it says.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from userdp.claims.lineage import Lineage
from userdp.claims.weights import (
    LINEAGE,
    copy_tensors,
    describe,
    digest_of,
    named_digest,
    read_header,
)
from userdp.core import files
from userdp.core.errors import UseError
from userdp.ledger import RunFolder

MODEL_FILES = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
    "chat_template.jinja", "model.safetensors.index.json",
)  # fmt: skip
ADAPTER_FILES = ("adapter_config.json",)
"""What may leave beside weights. Another file, though bound, stays in the run's folder."""
_FILE = re.compile(r"(adapter_)?model(-\d{5}-of-\d{5})?\.safetensors")
_NAME = re.compile(r"[A-Za-z0-9_.\-]{1,256}")


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
    for path in found:
        _refuse_other_names(path)
        copy_tensors(path, target / path.name, metadata={"format": "pt"})
    if not found or digest_of(target) != only:
        raise UseError(
            f"the weights in {source} are not those that the run released, as the last lines of "
            "its ledger say: the claim of the run is of other weights, and nothing was exported",
            hint="put the released weights back; `userdp verify RUN` names all that differs",
        )
    describe(target, lineage)
    return sorted(target.glob("*.safetensors"))


def _refuse_other_names(path: Path) -> None:
    """A second file of the same tensors changes no digest, and could be called anything."""
    if not _FILE.fullmatch(path.name):
        raise UseError(
            f"{path} is called as no file of released weights is: nobody knows whose it is",
            hint="remove it; released are model.safetensors, and adapter_model.safetensors",
        )
    for name in read_header(path)[0]:
        if not _NAME.fullmatch(name):
            raise UseError(f"{path} is damaged: one of its tensors is called {name[:80]!r}")
