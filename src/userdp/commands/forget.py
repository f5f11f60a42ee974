"""``userdp store forget``: erase a person."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from userdp.commands.members import person
from userdp.commands.progress import shown
from userdp.core.errors import UseError
from userdp.core.stages import Progress
from userdp.people.erasure import Forgotten, forget_user


def forget(
    store: str | os.PathLike[str],
    user: str,
    *,
    also: Sequence[Path] = (),
    yes: bool = False,
    progress: Progress | None = None,
) -> Forgotten:
    """Erase a person from a store and what was made of its text.

    The store becomes the one that would have been prepared without them, and a line without their
    id is left in its ledger. Interrupted runs may go on. No claim changes: what was released while
    the person was in the store stays released. Killed at any moment, the store holds the person as
    before, or not at all. Source files, backups and copies are the operator's to look through.
    Where nobody has the id, or weights would go and that was not agreed to, nothing changes, and
    the ledger notes a look: the answer tells who is in the store. What is printed is the last
    statement that can be made for the person: keep it.

    Example::

        userdp store forget store --user ann@example.org

    Args:
        store: a user store, or its folder. No run over it may be open.
        user: the person's id, as prepare read it; - to read it from standard input, which unlike a
            command line stands neither in the list of processes nor in the shell's history.
        also: further folders in which runs over the store lie.
        yes: delete weights that learned from the person without privacy. Without it they are named,
            and nothing is done.
        progress: is told how far it is; by default a bar, in a terminal or a notebook.

    Raises:
        UseError: nobody in the store has this id, there are weights to delete, a run is open, or
            another process changes the store.
        FailureError: the disk refused.
    """
    if not (name := person(user)):
        raise UseError("a user's id is empty", hint="name the person: --user ID")
    with shown(progress) as bar:
        folders = [Path(one) for one in also]
        return forget_user(Path(store), name, also=folders, yes=yes, progress=bar)
