"""The files that a run released: bound by its ledger, compared, and copied for others.

A model is more than its weights. The tokenizer, the settings and a chat template hold words, and a
word that somebody put there later would leave as part of a release that an ε covers. So a line of
the run's ledger binds every file that lies in RUN/model and RUN/adapter when the run ends, or when
its model is saved after that, by its SHA-256; and only bound files leave a run later. The options
in train.toml are bound with them.

One file is not bound: ``userdp.json``, which says what the weights descend from. It is written anew
where they come to descend from more (the winner of a tuning), and `userdp.claims.verify` holds it
against the ledger by what it says.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from userdp.claims.lineage import Lineage
from userdp.claims.weights import LINEAGE, describe
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
    """The digest of each file of the model and the adapters, and of the options, by its place."""
    return {place: files.digest_of_file(path) for place, path in _there(folder).items()}


def unbound(run: RunRecord) -> list[str]:
    """The places of files that lie beside the released ones, and that no line speaks of."""
    return [place for place in _there(run.folder) if place not in run.files]


def _there(folder: RunFolder) -> dict[str, Path]:
    return {
        path.relative_to(folder.path).as_posix(): path
        for path in sorted((*folder.model.rglob("*"), *folder.adapter.rglob("*"), folder.train))
        if path.is_file() and path.name != LINEAGE
    }


def bound_by(run: RunRecord) -> dict[Path, str]:
    """The digest of each file that a run's ledger binds, by the path where it should lie.

    Args:
        run: of the folder of a run; or of an export, whose model lies at its top, and which holds
            only what may leave.
    """
    folder = run.folder.path
    if not is_export(folder):
        return {folder / place: digest for place, digest in run.files.items()}
    return {
        folder / place.removeprefix("model/"): digest
        for place, digest in run.files.items()
        if _LEAVES.fullmatch(place)
    }


def differences(bound: Mapping[Path, str], ledger: Path) -> Iterator[str]:
    """Each bound file that is missing or another one; a sentence."""
    for path, digest in sorted(bound.items()):
        if not path.exists():
            yield f"{path}, which the run released, as {ledger} says, is not there"
        elif files.digest_of_file(path) != digest:
            yield f"{path} is not what the run released, as {ledger} says"


def require_released_files(run: RunRecord) -> None:
    """`UseError` where a run's folder holds another model than it released.

    A run that is not finished, or whose model lies elsewhere, has nothing here to be compared.
    """
    folder = run.folder
    elsewhere = [top for top in (folder.model, folder.adapter) if not top.is_dir()]
    here = {
        path: digest
        for path, digest in bound_by(run).items()
        if not any(map(path.is_relative_to, (folder.train, *elsewhere)))
    }
    if problem := next(differences(here, run.folder.ledger), None):
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
    for place in filter(_LEAVES.fullmatch, run.files):
        copy = target / place.removeprefix("model/")
        copy.parent.mkdir(exist_ok=True)
        shutil.copyfile(run.folder.path / place, copy)
    for folder in {path.parent for path in target.rglob("*.safetensors")}:
        describe(folder, lineage)


def refuse_diverged(folder: RunFolder) -> None:
    """`UseError` where the model that a run released computes no numbers."""
    if folder.diverged:
        raise UseError(
            f"the training of {folder.path} diverged: its weights, or what the model computes, are "
            "NaN or infinite, and nobody can use such a model",
            hint="train again in another --out, at a lower --learning-rate",
        )
