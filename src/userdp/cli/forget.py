"""``userdp forget``: erase a person."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from userdp.cli.output import Answer
from userdp.cli.person import PersonOption, person

if TYPE_CHECKING:
    from userdp.people.forget import Forgotten


def forget(
    store: Path,
    /,
    *,
    user: PersonOption,
    also: list[Path] | None = None,
    statement: Path | None = None,
    overwrite: bool = False,
    yes: bool = False,
) -> Answer:
    """Erase a person from a store and from what was made of its text, and prove it by a scan.

    The store becomes the one that would have been prepared without them, and a line without their
    id is left in its ledger. Interrupted runs may go on. No claim changes: what was released while
    the person was in the store stays released. The exit status is 1 where the scan still found
    something of the person, or could not read a file; it is then named. Where nobody has the id, or
    weights would go and --yes was not said, nothing changes, and the ledger notes a look: the
    answer tells who is in the store.

    Args:
        store: the user store. No run over it may be open.
        user: the person's id, as prepare read it; - to read it from standard input, which unlike
            this line stands neither in the list of processes nor in the shell's history.
        also: further files and folders in which runs over the store lie, or copies: they are
            scanned too.
        statement: a file to write the statement for the person to, for the operator only.
        overwrite: replace the file at --statement.
        yes: delete weights that learned from the person without privacy (--privacy none). Without
            it they are named, and nothing is done.
    """
    from userdp.api import people as api

    done = api.forget(
        store, person(user), also=also or (), yes=yes, statement=statement, overwrite=overwrite
    )
    return Answer(
        values={
            "store": str(store),
            "removed": [str(path) for path in done.removed],
            "files_scanned": done.scan.files,
            "found": [str(path) for path in done.scan.found],
            "unread": [str(path) for path in done.scan.unread],
            "runs_not_found": list(done.lost_runs),
            "id_scanned": done.traces.id_searched,
            "statement": done.statement.to_dict(),
        },
        parts=_parts(done, written=statement),
        status=0 if done.scan.clean else 1,
    )


def _parts(done: Forgotten, *, written: Path | None) -> Iterator[str]:
    yield "The person is erased from the store."
    for path in done.removed:
        yield f"removed: {path}"
    for path in done.scan.found:
        yield f"something of the person is still in {path}: nothing here wrote it, or may change it"
    for path in done.scan.unread:
        yield f"not read, so that nothing is said of it: {path}"
    if done.scan.clean:
        yield f"{done.scan.files} files were read, and hold nothing of the person."
    if not done.traces.id_searched:
        yield "The id is too short to be told from other bytes, so that it was not looked for."
    if done.traces.short:
        yield "Texts of fewer than 4 tokens are not told from other people's, and were not either."
    if done.lost_runs:
        yield (
            f"The folders of these runs were not found: {', '.join(done.lost_runs)}. Say where "
            "they lie with --also, and they are scanned; or delete them."
        )
    yield ""
    if written is not None:
        yield f"The statement for the person is in {written}."
    else:
        yield from ("For the person:", *done.statement.lines())
