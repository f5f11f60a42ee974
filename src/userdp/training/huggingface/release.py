"""What a private run of a trainer hands out when its last step is done."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from userdp import files
from userdp.claims.bound import bound_in
from userdp.claims.lineage import Lineage
from userdp.claims.verify import verify_run
from userdp.claims.weights import LINEAGE, describe
from userdp.errors import UseError
from userdp.ledger import RunFolder
from userdp.ledger.journal import read_entries
from userdp.training.private_run import PrivateRun


def release(run: PrivateRun, processing_class: Any) -> None:
    """Release the model of a run of which no step remains; see `PrivateRun.save`.

    Args:
        run: of the trainer.
        processing_class: the trainer's tokenizer; its chat template is written beside the weights.
    """
    template = getattr(processing_class, "chat_template", None)
    run.save(
        tokenizer=processing_class, chat_template=template if isinstance(template, str) else None
    )


def copy_released(folder: RunFolder, place: Path) -> None:
    """Copy what a run released: the adapter, where there is one, or else the model.

    The model in memory is not written: what it has learned since, no claim tells.

    Raises:
        UseError: what lies in the run's folder is not what it released.
    """
    problems = verify_run(folder.path).problems
    if problems:
        raise UseError(
            f"what lies in {folder.path} is not what the run released: {problems[0]}",
            hint="put the released files back",
        )
    place.mkdir(parents=True, exist_ok=True)
    source = folder.adapter if folder.adapter.is_dir() else folder.model
    bound = bound_in(read_entries(folder.ledger)) or {}
    for path in source.iterdir():
        if path.name == LINEAGE or f"{source.name}/{path.name}" in bound:
            files.write_file(place / path.name, path.read_bytes())


def describe_saved(folder: Path, lineage: Lineage) -> None:
    """Note beside the weights of a checkpoint, and in their files, what they descend from."""
    describe(folder, lineage)
    for weights in folder.glob("*.safetensors"):
        weights.chmod(files.OPERATOR_FILE)
