"""``userdp verify``: is a store, a run or a model what was written, and what does it claim?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from userdp.cli.claims import claim_parts
from userdp.cli.output import Answer
from userdp.errors import UseError
from userdp.reporting.table import Table

if TYPE_CHECKING:
    from userdp.claims import Claim


def verify(path: Path, /, *, quick: bool = False) -> Answer:
    """Check a store, a run or a model against what was written, and recompute its claim.

    Of a store: its files, index and content, and its privacy ledger. Of a run: its ledger, and the
    weights, plan and options against it. Of a model: its weights against what its folder says that
    they descend from. The exit status is 0 where all is well, and 1 where something differs; it is
    then named. Nothing here finds somebody who wrote all of the files anew: that takes a signature.

    Args:
        path: the folder of a store, of a run, or of a model.
        quick: of a store, compare the files with their checksums, without reading the tokens by
            the index.
    """
    from userdp.claims.verify import is_model, is_run, verify_model, verify_run
    from userdp.data.meta import is_store

    if is_store(path) or not path.exists():
        return _verify_store(path, quick=quick)
    if quick:
        raise UseError("--quick is for a store", hint="leave --quick out")
    if is_run(path):
        subject, found = "run", verify_run(path)
    elif is_model(path):
        subject, found = "model", verify_model(path)
    else:
        raise UseError(
            f"{path} is neither a store nor a run nor a model: there is nothing to check it by",
            hint="name a folder that `userdp prepare` or `userdp train` wrote, or its model/",
        )
    return _answer(
        {subject: str(path), "subject": subject},
        found.problems,
        found.claim,
        said=[*found.notes, f"The {subject} is as written."],
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
    values: dict[str, Any], problems: Sequence[str], claimed: Claim | None, *, said: list[str]
) -> Answer:
    def parts() -> Iterator[Table | str]:
        yield from problems
        if problems:
            yield f"{len(problems)} problem(s): no claim is to be believed of what is here."
            return
        yield from said
        if claimed is not None:
            yield from claim_parts(claimed)

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
