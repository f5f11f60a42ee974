"""``userdp members``: who is covered by what."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from userdp.cli.output import Answer, for_whom
from userdp.cli.person import PersonOption, person
from userdp.reporting.table import Table, table_of
from userdp.vocabulary import delta_up, round_up

if TYPE_CHECKING:
    from userdp.api.people import Members
    from userdp.people.membership import Intake


def members(
    store: Path,
    /,
    *,
    user: PersonOption | None = None,
    statement: Path | None = None,
    overwrite: bool = False,
) -> Answer:
    """Say who was in a store for what was charged, and what each user was charged in all.

    A claim holds for the users who were in the store when its run was opened; whoever joined later
    (prepare --append) pays only for what came after. With --user, the statement for one person who
    asks what became of their text. The numbers are exact: operator-only, and a look at the store.

    Args:
        store: the user store.
        user: the id of the person who asks; - to read it from standard input, which unlike this
            line stands neither in the list of processes nor in the shell's history.
        statement: a file to write the statement for that person to, for the operator only.
        overwrite: replace the file at --statement.
    """
    from userdp.api import people as api
    from userdp.errors import UseError

    if user is not None:
        said = api.statement(store, person(user), out=statement, overwrite=overwrite)
        return Answer(values={"store": str(store), **said.to_dict()}, parts=said.lines())
    if statement is not None:
        raise UseError("a statement is for one person", hint="name the person: --user ID")
    found = api.members(store)
    return Answer(values=found.to_dict(), parts=_parts(found))


def _parts(found: Members) -> Iterator[Table | str]:
    words = "exact counts of people, which no epsilon covers"
    yield f"{for_whom(operator_only=True, why=words)}\n"
    yield table_of(
        found.intakes,
        {
            "state": lambda one: str(one.number + 1),
            "how": lambda one: str(one.state.kind),
            "users who joined": lambda one: one.users,
            "charges since": lambda one: len(one.charges),
            "each was charged": _total,
        },
    )
    for charge, state in found.charges:
        where = f"state {state}" if state else "an unknown state, so that it counts for everybody"
        yield f"{charge.run_id} was charged in {where}"


def _total(one: Intake) -> str:
    if one.total is None:
        return "nothing"
    guarantee = one.total.guarantee
    if not one.total.finite:
        return "no bound"
    return f"epsilon = {round_up(guarantee.epsilon)} at delta = {delta_up(guarantee.delta)}"
