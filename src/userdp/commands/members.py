"""``userdp store members``: who is covered by what, and what one person can be told."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from userdp.commands.answer import INNER, Answer
from userdp.core.errors import UseError
from userdp.data.user_store import UserStore
from userdp.ledger import StoreLedger
from userdp.people.statements import Statement, intakes, state_number, statement_for


@dataclass(frozen=True, kw_only=True, slots=True)
class Members(Answer):
    """Who joined a store when, and what they were charged since; operator-only.

    Args:
        store: its folder.
        operator_only: whether it is about everybody.
        joined: for each state, from 1, the users who joined in it, and what they were charged.
        charges: all that was charged, and the number of the state that the store was in; None where
            that was not written, so that it counts for everybody.
        statement: what one person can be told, if one was asked for.
    """

    store: Path
    operator_only: bool | None = None
    joined: tuple[dict[str, Any], ...] | None = None
    charges: tuple[dict[str, Any], ...] | None = None
    statement: Statement | None = field(default=None, metadata=INNER)


def members(
    store: str | os.PathLike[str],
    *,
    user: str | None = None,
) -> Members:
    """Say who was charged what, and what one person can be told.

    A claim holds for the users who were in the store when its run was opened; whoever joined later
    (prepare --append) pays only for what came after. With a user, the statement for one person who
    asks what became of their text. The numbers are exact: operator-only, and a look at the store.

    Example::

        userdp store members store

    Args:
        store: a user store, or its folder.
        user: the id of the person who asks; - to read it from standard input, which unlike a
            command line stands neither in the list of processes nor in the shell's history.

    Raises:
        UseError: no store is there, or nobody in it has this id.
    """
    opened = UserStore.open(place := Path(store), fixed_graph=True)
    ledger, name = StoreLedger(place), None if user is None else person(user)
    ledger.look("members")  # that nobody has this id is an answer too
    if name is not None:
        return Members(store=place, statement=statement_for(opened, name))
    history, joined = ledger.history(), list[dict[str, Any]]()
    for one in intakes(opened, history):
        price = one.total and one.total.guarantee
        told = {"state": one.number + 1, "kind": str(one.state.kind), "users": one.users}
        cost = {"epsilon": price.epsilon if price else 0.0, "delta": price.delta if price else 0.0}
        joined.append({**told, "charges": len(one.charges), **cost})
    states = {one.run_id: state_number(opened, one) for one in history.charges.values()}
    charges = [
        {"id": run_id, "state": None if number is None else number + 1}
        for run_id, number in states.items()
    ]
    return Members(store=place, operator_only=True, joined=tuple(joined), charges=tuple(charges))


def person(user: str) -> str:
    """The id that ``user`` stands for; "-" stands for the first line of standard input.

    What is typed on a command line stands in the list of processes, where everybody on the machine
    may read it, and in the shell's history. Standard input does not.
    """
    if user != "-":
        return user
    line = sys.stdin.readline()
    if not line.strip():
        raise UseError(
            "--user - reads an id from standard input, and nothing came there",
            hint="type the id and a new line, or pass a file of it: userdp ... --user - < FILE",
        )
    return line.removesuffix("\n").removesuffix("\r")
