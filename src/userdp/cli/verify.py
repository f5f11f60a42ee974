"""``userdp verify``: is a store, a run, a model or an export as written, and what is claimed?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from userdp.cli.claims import claim_parts
from userdp.cli.output import Answer
from userdp.errors import UseError
from userdp.reporting.table import Table
from userdp.vocabulary import round_up

if TYPE_CHECKING:
    from userdp.claims import Claim


def verify(path: Path, /, *, quick: bool = False, key: Path | None = None) -> Answer:
    """Check a store, a run, a model or an export, and recompute its claim.

    Of a store: its files, index and content, and its privacy ledger. Of a run: its ledger, and the
    weights, plan and options against it. Of a model: its weights against what its folder says that
    they descend from. Of an export: every file against its statement and its ledger, and epsilon
    by two accountants; neither the data nor the run is needed. The exit status is 0 where all is
    well, and 1 where something differs; it is then named. Only a signature, checked with --key,
    finds somebody who wrote all of the files anew.

    Args:
        path: the folder of a store, of a run, of a model, or an export.
        quick: of a store, compare the files with their checksums, without reading the tokens by
            the index.
        key: of an export, the public key (PEM) of who should have signed it.
    """
    from userdp.claims.exported import is_exported
    from userdp.claims.verify import is_model, is_run, verify_model, verify_run
    from userdp.data.meta import is_store

    exported = is_exported(path)
    if key is not None and not exported:
        raise UseError(
            f"{path} is no export: nothing there could be signed",
            hint="name a folder that `userdp export RUN --out DIR --sign KEY` wrote",
        )
    if not exported and (is_store(path) or not path.exists()):
        return _verify_store(path, quick=quick)
    if quick:
        raise UseError("--quick is for a store", hint="leave --quick out")
    if exported:
        return _verify_export(path, key=key)
    if is_run(path):
        subject, found = "run", verify_run(path)
    elif is_model(path):
        subject, found = "model", verify_model(path)
    else:
        raise UseError(
            f"{path} is neither a store nor a run nor a model nor an export: there is nothing to "
            "check it by",
            hint="name a folder that `userdp prepare`, `train` or `export` wrote",
        )
    return _answer(
        {subject: str(path), "subject": subject},
        found.problems,
        found.claim,
        said=[*found.notes, f"The {subject} is as written."],
    )


def _verify_export(path: Path, *, key: Path | None) -> Answer:
    from userdp.claims.exported import verify_export

    checked = verify_export(path, key=key)
    second = checked.second
    opinion = "No second accountant here knows the price of all of its parts."
    if second is not None:
        opinion = (
            f"Recomputed by another accountant ({second.accountant}): ε ≤ "
            f"{round_up(second.epsilon)} at the same δ. Both are upper bounds of the true one."
        )
    return _answer(
        {
            "export": str(path),
            "subject": "export",
            "signed_by": checked.signed_by,
            "second": None if second is None else asdict(second),
        },
        checked.problems,
        checked.claim,
        said=["Every file is the one that was exported.", *checked.notes],
        after=[opinion] if checked.claim is not None else [],
    )


def _verify_store(path: Path, *, quick: bool) -> Answer:
    from userdp.api.progress import shown
    from userdp.claims import claim
    from userdp.data.verify import verify_store
    from userdp.ledger import StoreLedger

    with shown() as bar:
        checked = verify_store(path, deep=not quick, progress=bar)
    problems, claimed = list(checked.problems), None
    try:
        ledger = StoreLedger(path)
        if ledger.charges():
            claimed = claim(path)
    except UseError as error:  # for this command a broken chain is what it looks for
        problems.append(error.message)
    # No size and no count: those are exact facts about people's text, and a look at them a line.
    return _answer(
        {"store": str(path), "subject": "store", "files": checked.files},
        problems,
        claimed,
        said=[f"{checked.files} files: as written"],
    )


def _answer(
    values: dict[str, Any],
    problems: Sequence[str],
    claimed: Claim | None,
    *,
    said: Sequence[str],
    after: Sequence[str] = (),
) -> Answer:
    def parts() -> Iterator[Table | str]:
        yield from problems
        if problems:
            yield f"{len(problems)} problem(s): no claim is to be believed of what is here."
            return
        yield from said
        if claimed is not None:
            yield from claim_parts(claimed)
        yield from after

    return Answer(
        values={
            **values,
            "ok": not problems,
            "problems": list(problems),
            "claim": None if claimed is None else claimed.to_dict(),
        },
        parts=parts(),
        status=1 if problems else 0,
    )
