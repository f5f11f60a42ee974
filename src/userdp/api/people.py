"""Who is covered by what, and how a person is erased: ``userdp.members`` and ``userdp.forget``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from userdp.api.progress import shown
from userdp.data.store import UserStore
from userdp.errors import UseError
from userdp.files import OPERATOR_FILE, require_new, write_file
from userdp.ledger import StoreLedger
from userdp.ledger.charges import Charge
from userdp.people.forget import Forgotten, forget_user, statement_for
from userdp.people.membership import Intake, intakes, state_number
from userdp.people.statement import Statement

if TYPE_CHECKING:
    from userdp.data.progress import Progress


@dataclass(frozen=True, kw_only=True, slots=True)
class Members:
    """Who joined a store when, and what they were charged since; operator-only.

    Args:
        store: its folder.
        intakes: the users by the state in which they joined.
        charges: all that was charged, and the number of the state that the store was in, from 1;
            None where that was not written.
    """

    store: Path
    intakes: tuple[Intake, ...]
    charges: tuple[tuple[Charge, int | None], ...]

    def to_dict(self) -> dict[str, Any]:
        """What ``userdp members --json`` prints."""
        return {
            "store": str(self.store),
            "operator_only": True,
            "joined": [
                {
                    "state": one.number + 1,
                    "kind": str(one.state.kind),
                    "users": one.users,
                    "charges": len(one.charges),
                    "epsilon": one.total.guarantee.epsilon if one.total else 0.0,
                    "delta": one.total.guarantee.delta if one.total else 0.0,
                }
                for one in self.intakes
            ],
            "charges": [{"id": charge.run_id, "state": state} for charge, state in self.charges],
        }


def members(store: UserStore | str | Path) -> Members:
    """Who was in a store for what was charged, and what each user was charged in all.

    A claim holds for the users who were in the store when its run was opened. Whoever joined later
    pays only for what came after. The numbers are exact, so this is a look at the store.

    Args:
        store: a user store, or its folder.

    Raises:
        UseError: no store is there.
    """
    place = _place(store)
    opened = UserStore.open(place, fixed_graph=True)
    ledger = StoreLedger(place)
    ledger.look("members")
    history = ledger.history()
    numbers = ((charge, state_number(opened, charge)) for charge in history.charges.values())
    return Members(
        store=place,
        intakes=tuple(intakes(opened, history)),
        charges=tuple((charge, None if at is None else at + 1) for charge, at in numbers),
    )


def statement(
    store: UserStore | str | Path,
    user: str,
    *,
    out: str | Path | None = None,
    overwrite: bool = False,
) -> Statement:
    """What a person can be told who asks what became of their text: releases, and their bounds.

    Whether somebody is in a store is exact, so this is a look at the store.

    Args:
        store: a user store, or its folder.
        user: the person's id, as `prepare` read it.
        out: also written there, as text, for nobody but the operator to read.
        overwrite: replace the file at ``out``.

    Raises:
        UseError: nobody in the store has this id.
    """
    if out is not None:
        require_new(Path(out), overwrite=overwrite, name="statement.txt")
    place = _place(store)
    UserStore.open(place, fixed_graph=True)
    StoreLedger(place).look("members")  # that nobody has this id is an answer too
    made = statement_for(place, user)
    if out is not None:
        _write(Path(out), made)
    return made


def forget(
    store: UserStore | str | Path,
    user: str,
    *,
    also: Sequence[str | Path] = (),
    yes: bool = False,
    statement: str | Path | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Forgotten:
    """Erase a person from a store and from what was made of its text, and prove it by a scan.

    The store becomes the one that would have been prepared without them; runs over it that were
    interrupted may go on. No claim changes. Killed at any moment, the store holds the person as
    before, or not at all.

    Args:
        store: a user store, or its folder; no run over it may be open.
        user: the person's id, as `prepare` read it.
        also: further files and folders in which runs over the store lie, or copies: they are
            scanned too.
        yes: delete weights that learned from the person without privacy. Without it they are named,
            and nothing is done.
        statement: a file to write the statement for the person to, for the operator only.
        overwrite: replace the file at ``statement``.
        progress: is told how far it is; by default a bar, in a terminal or a notebook.

    Raises:
        UseError: nobody in the store has this id, or there are weights to delete: that tells who is
            there, which is a look at the store, and nothing else has changed. Or a run is open, or
            another process changes the store: then nothing has changed at all.
        FailureError: the disk refused.
    """
    if statement is not None:
        require_new(Path(statement), overwrite=overwrite, name="statement.txt")
    if not user:
        raise UseError("a user's id is empty", hint="name the person: --user ID")
    with shown(progress) as bar:
        done = forget_user(
            _place(store), user, also=[Path(one) for one in also], yes=yes, progress=bar
        )
    if statement is not None:
        _write(Path(statement), done.statement)
    return done


def _place(store: UserStore | str | Path) -> Path:
    return store.path if isinstance(store, UserStore) else Path(store)


def _write(path: Path, made: Statement) -> None:
    write_file(path, "\n\n".join([*made.lines(), ""]).encode(), mode=OPERATOR_FILE)
