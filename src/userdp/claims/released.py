"""The files that a run released: bound by its ledger, compared, and copied for others.

A model is more than its weights. The tokenizer, the settings and a chat template hold words, and a
word that somebody put there later would leave as part of a release that an ε covers. So the
finishing line of a run's ledger binds every file that lies in RUN/model and RUN/adapter when the
run ends, by its SHA-256, and only bound files leave a run later.

One file is not bound: ``userdp.json``, which says what the weights descend from. It is written anew
where they come to descend from more (the winner of a tuning), and `userdp.claims.verify` holds it
against the ledger by what it says.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from safetensors import safe_open

from userdp.claims.lineage import Lineage
from userdp.claims.weights import LINEAGE, describe, digest_of
from userdp.core import files
from userdp.core.errors import UseError
from userdp.ledger import RunFolder, RunRecord

STATEMENT = "statement.json"
"""The file that only an export has."""
_LEAVES = re.compile(
    r"model/((generation_)?config|tokenizer(_config)?|model\.safetensors\.index)\.json"
    r"|model/chat_template\.jinja|adapter/adapter_config\.json"
    r"|(model|adapter)/(adapter_)?model(-\d{5}-of-\d{5})?\.safetensors"
)
"""The bound files that may leave; others, such as a trainer's state, stay in the run's folder."""


def is_export(folder: Path) -> bool:
    """Whether it is an export, which has a statement, and whose model lies at its top."""
    return (folder / STATEMENT).exists()


def bound_files(folder: RunFolder) -> dict[str, str]:
    """The digest of each file of the model and the adapters, by its place."""
    return {place: files.digest_of_file(path) for place, path in _there(folder).items()}


def unbound(run: RunRecord) -> list[str]:
    """The places of files that lie beside the released ones, and that no line speaks of."""
    bound = {} if run.finish is None else run.finish.files
    weights = () if bound else (".safetensors",)  # saved after the end: known by their digest
    return [one for one in _there(run.folder) if one not in bound and not one.endswith(weights)]


def _there(folder: RunFolder) -> dict[str, Path]:
    return {
        path.relative_to(folder.path).as_posix(): path
        for top in (folder.model, folder.adapter)
        for path in sorted(top.rglob("*"))
        if path.is_file() and path.name != LINEAGE
    }


def bound_by(run: RunRecord) -> dict[Path, str]:
    """What a run's ledger binds of its model, by the path where it should lie.

    Args:
        run: of the folder of a run; or of an export, whose model lies at its top, and which holds
            only what may leave.

    Returns:
        The digest of each file. The weights of a folder are bound as a whole where not every file
        of them is bound by itself: a model may be saved after the run's end.
    """
    if run.finish is None:
        return {}
    folder, digests, bound = run.folder, run.finish.digests, dict[Path, str]()
    exported = is_export(folder.path)
    for place, digest in run.finish.files.items():
        if not exported:
            bound[folder.path / place] = digest
        elif _LEAVES.fullmatch(place):
            bound[folder.path / place.removeprefix("model/")] = digest
    weights, adapter = digests.get("weights"), digests.get("adapter")
    model = folder.path if exported else folder.model
    # Where only adapters were released, both digests are theirs.
    for top, whole in ((model, None if weights == adapter else weights), (folder.adapter, adapter)):
        single = [one for one in bound if one.parent == top and one.suffix == ".safetensors"]
        if whole and (not single or {*top.glob("*.safetensors")} - {*single}):
            bound[top] = whole
    return bound


def differences(bound: Mapping[Path, str], ledger: Path) -> Iterator[str]:
    """Each bound file, and each folder of weights, that is missing or another one; a sentence."""
    for path, digest in sorted(bound.items()):
        if not path.exists():
            yield f"{path}, which the run released, as {ledger} says, is not there"
        elif (digest_of(path) if path.is_dir() else files.digest_of_file(path)) != digest:
            what = f"the weights in {path} are" if path.is_dir() else f"{path} is"
            yield f"{what} not what the run released, as {ledger} says"


def require_released_files(run: RunRecord) -> None:
    """`UseError` where a run's folder holds another model than it released.

    A run that is not finished, or whose model lies elsewhere, has nothing here to be compared.
    """
    elsewhere = [top for top in (run.folder.model, run.folder.adapter) if not top.is_dir()]
    here = {
        path: digest
        for path, digest in bound_by(run).items()
        if not any(map(path.is_relative_to, elsewhere))
    }
    if problem := next(differences(here, run.path), None):
        raise UseError(
            f"{problem}: what is said of the run is said of the whole model that it released, and "
            "of no file that came later",
            hint="put the released files back; `userdp verify RUN` names all that differs",
        )


def copy_released(run: RunRecord, target: Path, lineage: Lineage) -> None:
    """Copy what may leave of a released model and adapter, with what the weights descend from.

    Whoever calls this has compared the files before (`differences`), and compares the copies
    afterwards.
    """
    assert run.finish is not None
    bound = run.finish.files or [one for one in _there(run.folder) if "safetensors" in one]
    for place in filter(_LEAVES.fullmatch, bound):
        if not run.finish.files and place.endswith(".safetensors"):
            _require_no_notes(run.folder.path / place)
        copy = target / place.removeprefix("model/")
        copy.parent.mkdir(exist_ok=True)
        shutil.copyfile(run.folder.path / place, copy)
    for folder in {path.parent for path in target.rglob("*.safetensors")}:
        describe(folder, lineage)


def _require_no_notes(path: Path) -> None:
    """`UseError` where a file of weights holds words beside its tensors.

    Of weights that were saved after the run's end the ledger knows the tensors alone. A trainer or
    a merging tool may have written captions, tags or its whole configuration into their metadata.
    """
    with safe_open(path, framework="np") as file:
        tensors, notes = {*file.keys()}, file.metadata() or {}
    # ``safetensors.torch.save_model`` notes which tensor stands for another one of the same memory.
    foreign = sorted(name for name, of in notes.items() if name != "format" and of not in tensors)
    if foreign:
        raise UseError(
            f"{path} holds {', '.join(foreign)} in its metadata, which the run did not write: the "
            "claim covers the weights, and no words that were put beside them",
            hint="save the model anew with `private.save()`",
        )
