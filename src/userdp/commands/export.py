"""``userdp.export``: a folder of what may leave, checked before anybody sees it."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from userdp.claims.lineage import ConditionKind
from userdp.claims.released_files import STATEMENT, copy_released, refuse_diverged
from userdp.claims.signed_statement import (
    ENVELOPE,
    encoded,
    envelope_of,
    private_key,
    statement_of,
)
from userdp.claims.verify import run_differs
from userdp.claims.verify import verify as checked_export
from userdp.core import files
from userdp.core.errors import FailureError, UseError
from userdp.ledger import RunFolder, RunRecord, journal
from userdp.ledger.lines import Chosen
from userdp.ledger.run_folder import LEDGER
from userdp.plans import Plan
from userdp.reporting.card import README, CardOptions, render_model_card
from userdp.reporting.facts import Facts, read_run
from userdp.reporting.page import render_report

REPORT = "report.html"
_FOLDER = 0o755


def export(
    run: str | os.PathLike[str],
    *,
    out: str | Path,
    sign: str | Path | None = None,
    **card: Annotated[Any, CardOptions],
) -> dict[str, Any]:
    """Write a folder of all that may leave of a finished run.

    In it are the weights, the adapters, the tokenizer, README.md (a model card for the Hugging Face
    hub), the ledger, the plan, the public report, and a statement with the digest of each file.
    Every file of the model is one that the run's ledger binds, and every other is written anew. The
    folder is there whole, after `userdp verify` has passed it, or not at all. A run of which
    nothing is claimed is refused.

    Example::

        userdp export run --out shared

    Args:
        run: a run or its folder: of training, of a loop or a trainer of your own, or the winner of
            a sweep.
        out: a new folder.
        sign: a private key (PEM, Ed25519 say) that only you may read: signs the statement.
        card: fields of `userdp.reporting.card.CardOptions`, such as ``license``.

    Returns:
        The folder (``export``), the places of its ``files``, the id of the key that signed its
        statement (``signed_by``), ``notes`` to read before it is handed on, and the ``claim``.

    Raises:
        UseError: nothing is claimed of the run, it released no model, its folder holds something
            else than it released, or ``out`` is there already.
        FailureError: the disk refused.
    """
    folder, target = RunFolder(Path(run)), Path(out)
    if target.is_symlink() or target.exists():
        raise UseError(
            f"{target} is there already: an export holds just what one run released, so that it is "
            "never written over or into something else",
            hint="choose a new --out, or remove what is there",
        )
    words = CardOptions(**card)
    key = None if sign is None else private_key(Path(sign))
    record = RunRecord.read(folder.path)
    facts = _released(record)
    target.parent.mkdir(parents=True, exist_ok=True)
    with files.whole_folder(target, mode=_FOLDER) as place:
        notes = _write(record, place, replace(facts, name=target.resolve().name), words)
        payload = encoded(statement_of(place, facts.claim))
        files.write_file(place / STATEMENT, payload)
        if key is not None:
            files.write_file(place / ENVELOPE, envelope_of(payload, key))
        for path in (place, *place.rglob("*")):  # whatever the umask of this process
            path.chmod(_FOLDER if path.is_dir() else files.SHAREABLE_FILE)
        checked = checked_export(place)
        if checked.problems or checked.claim is None:
            raise FailureError(f"what was exported does not verify: {checked.problems[0]}")
        written = sorted(str(one.relative_to(place)) for one in place.rglob("*") if one.is_file())
    return {
        "export": target,
        "files": written,
        "signed_by": None if key is None else str(key.public_key.keyid),
        "notes": notes,
        "claim": checked.claim,
    }


def _released(run: RunRecord) -> Facts:
    """The public facts of a run that may be exported; `UseError` of any other."""
    folder, facts = run.folder, read_run(run.folder.path, run)
    if not facts.claim.finite:
        raise UseError(
            f"nothing is claimed of the run at {folder.path}: {facts.claim.why_nothing}. An "
            "export says what holds for the people whose text it was, and of this model nothing",
            hint="export a private run; of a tuning its winner",
        )
    if not facts.finished or not folder.released.is_dir():
        raise run.without_model
    refuse_diverged(folder)
    if problem := next(run_differs(run), None):
        raise UseError(
            f"what lies in {folder.path} is not what the run released: {problem}",
            hint="put the released files back; `userdp verify RUN` names all that differs",
        )
    return facts


def _write(run: RunRecord, target: Path, facts: Facts, words: CardOptions) -> list[str]:
    """All files but the statement; returns what is to be known of them."""
    folder, ledger, lineage = run.folder, target / LEDGER, facts.claim.lineage
    files.write_file(ledger, run.data)
    choices = [one for one in lineage.conditions if one.kind is ConditionKind.CHOSEN]
    if choices:  # whoever has the export has no store to ask
        journal.append(ledger, lambda _: [Chosen(told=one.told) for one in choices])
    copy_released(run, target, lineage)
    facts = replace(facts, ledger_digest=files.digest_of_file(ledger))
    Plan.load(folder.plan).save(target / folder.plan.name)
    files.write_file(target / REPORT, render_report([facts]).encode())
    there = {path.name for path in target.iterdir()}
    files.write_file(target / README, render_model_card(facts, words, files=there).encode())
    notes = []
    if choices:
        notes.append(
            "The claim does not cover a choice of this run among several: let `userdp tune` choose "
            "(docs/tuning.md)."
        )
    if words.license is None:
        notes.append("The card names no license, without which nobody may use the model.")
    return notes
