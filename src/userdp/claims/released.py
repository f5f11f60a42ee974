"""The files that a run released: bound by its ledger, compared, and copied for others.

A model is more than its weights. The tokenizer, the settings and a chat template hold words, and a
word that somebody put there later would leave as part of a release that an ε covers. So what lies
in RUN/model and RUN/adapter when a run ends is bound file by file in the ledger's finishing line,
and what leaves a run later is what is bound. Of a file of weights the tensors and their names are
bound: whatever else stands in it was bound by nobody, and does not go along.

One file is not bound: ``userdp.json``, which says what the weights descend from. It is written anew
where that is told in other words (the winner of a tuning), and is held against the ledger by what
it says (`userdp.claims.verify`).
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath

from userdp.claims.lineage import Lineage
from userdp.claims.subject import LINEAGE, copy_tensors, describe, digest_of, named_digest
from userdp.core import files
from userdp.core.errors import UseError
from userdp.ledger import RunFolder, RunRecord

_LEAVES = re.compile(
    r"model/((generation_)?config|tokenizer(_config)?|model\.safetensors\.index)\.json"
    r"|model/chat_template\.jinja|adapter/adapter_config\.json"
    r"|(model|adapter)/(adapter_)?model(-\d{5}-of-\d{5})?\.safetensors"
)
"""What may leave. Another file, though bound, stays in the run's folder."""


def content_digest(path: Path) -> str:
    """SHA-256 of a file: of one of weights, its tensors by name; of any other, its bytes.

    Raises:
        UseError: it is a link, or a damaged file of weights.
    """
    if path.is_symlink():
        raise UseError(f"{path} is a link, and a run releases none")
    return named_digest(path) if path.suffix == ".safetensors" else files.digest_of_file(path)


def bound_files(folder: RunFolder) -> dict[str, str]:
    """What a finishing line is to bind: the digest of each file of the model and the adapter.

    Returns:
        By the place in the run's folder: ``model/config.json``.
    """
    return {place: content_digest(path) for place, path in _there(folder).items()}


def unbound(run: RunRecord) -> list[str]:
    """The places of files that lie beside the released ones, and that no line speaks of."""
    bound = {} if run.finish is None else run.finish.files
    weights = () if bound else (".safetensors",)  # saved after the end: known by their digest
    return [one for one in _there(run.folder) if one not in bound and not one.endswith(weights)]


def _there(folder: RunFolder) -> dict[str, Path]:
    """Every file and link under the folders of the model and the adapter, by its place."""
    return {
        path.relative_to(folder.path).as_posix(): path
        for top in (folder.model, folder.adapter)
        if top.is_dir()
        for path in sorted(top.rglob("*"))
        if path.name != LINEAGE and (path.is_symlink() or not path.is_dir())
    }


def bound_by(run: RunRecord, *, exported: bool = False) -> dict[Path, str]:
    """What a finishing line binds of a released model, by the path where it should lie.

    Args:
        run: of the folder of a run, or of an export.
        exported: the folder is an export, whose model lies at its top.

    Returns:
        The digest of each file. The weights of a folder are bound as a whole where not every file
        of them is bound by itself: a model may be saved after the run's end.
    """
    if run.finish is None:
        return {}
    folder, digests = run.folder, run.finish.digests
    tops = {"model": folder.path if exported else folder.model, "adapter": folder.adapter}
    bound = {}
    for place, digest in run.finish.files.items():
        top, _, name = place.partition("/")
        inside = top in tops and ".." not in PurePosixPath(name).parts
        if _LEAVES.fullmatch(place) if exported else inside:
            bound[tops[top] / name] = digest
    weights, adapter = digests.get("weights"), digests.get("adapter")
    for top, whole in (("model", None if weights == adapter else weights), ("adapter", adapter)):
        there = set(tops[top].glob("*.safetensors"))
        if whole and not (there and there <= bound.keys()):
            bound[tops[top]] = whole
    return bound


def differences(bound: Mapping[Path, str], ledger: Path) -> Iterator[str]:
    """Each bound file, and each folder of weights, that is missing or another one; a sentence."""
    for path, digest in sorted(bound.items()):
        said = f"the run released, as {ledger} says"
        if not path.is_symlink() and not path.exists():
            yield f"{path}, which {said}, is not there"
            continue
        try:
            folder = path.is_dir() and not path.is_symlink()
            seen = digest_of(path) if folder else content_digest(path)
        except UseError as error:
            yield error.message
            continue
        if seen != digest and (path.is_dir() or path.suffix == ".safetensors"):
            yield f"the weights in {path} are not those that {said}"
        elif seen != digest:
            yield f"{path} is not the file that {said}"


def require_released_files(run: RunRecord) -> None:
    """`UseError` where a run's folder holds another model than it released.

    A run that is not finished, or whose model lies elsewhere, has nothing here to be compared.
    """
    tops = [top for top in (run.folder.model, run.folder.adapter) if top.is_dir()]
    bound = bound_by(run) if run.finish and run.finish.digests.get("weights") else {}
    here = {path: one for path, one in bound.items() if any(map(path.is_relative_to, tops))}
    if problem := next(differences(here, run.path), None):
        raise UseError(
            f"{problem}: what is said of the run is said of the whole model that it released, and "
            "of no file that came later",
            hint="put the released files back; `userdp verify RUN` names all that differs",
        )


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


def copy_released(run: RunRecord, target: Path, lineage: Lineage) -> None:
    """Copy what may leave of a released model and adapter, with what the weights descend from.

    Of files of weights nothing but tensors and their names goes along. Whoever calls this has
    compared the files before (`differences`) and compares the copies afterwards.
    """
    assert run.finish is not None
    bound = run.finish.files or {one: "" for one in _there(run.folder) if "safetensors" in one}
    for place in filter(_LEAVES.fullmatch, bound):
        source, copy = run.folder.path / place, target / place.removeprefix("model/")
        require_no_links([source])
        copy.parent.mkdir(exist_ok=True)
        if source.suffix == ".safetensors":
            copy_tensors(source, copy, metadata={"format": "pt"})
        else:
            shutil.copyfile(source, copy)
    for folder in {path.parent for path in target.rglob("*.safetensors")}:
        describe(folder, lineage)
