"""``userdp store …``: a store's life: its numbers, its budget, who joined, who was erased."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from userdp.accounting.filters import RenyiFilter
from userdp.claims import claim as claim_at
from userdp.commands.arguments import folder_of, require_new
from userdp.commands.budget_overview import overview
from userdp.commands.progress import shown
from userdp.core.codec import encode, plain
from userdp.core.errors import UseError
from userdp.core.stages import Progress
from userdp.data.exact_counts import describe
from userdp.data.store_meta import read_meta
from userdp.data.user_store import UserStore
from userdp.ledger import RunRecord, StoreLedger
from userdp.ledger.lines import OpenBudget, Settle
from userdp.ledger.store_ledger import new_id
from userdp.people.erasure import Forgotten, forget_user
from userdp.people.member_statements import intakes, state_number, statement_for
from userdp.queries import DEFAULT_STATISTICS, release


def stats(
    store: str | os.PathLike[str],
    *,
    epsilon: float | None = None,
    ask: Sequence[str] = (),
    most_examples: int = 4096,
) -> dict[str, Any]:
    """Count a store's users and examples: exactly, or under DP.

    Without epsilon the numbers are exact, so they are for the store's operator: they are not
    differentially private, and nothing public, nor a constant of a plan, may be derived from them.
    With it they may be published; what they cost is written in the store's privacy ledger first.

    Example::

        userdp store stats store

    Args:
        store: a user store, or its folder.
        epsilon: of all answers together, per user, add-or-remove.
        ask: users, examples, median, p1 to p99; by default users, examples and median.
        most_examples: public bound on a user's examples; a user with more counts as having so many.

    Returns:
        The exact numbers, ``operator_only``; or the DP ``answers`` and their price.

    Raises:
        UseError: no store is there, an argument is out of range, or the budget refuses the price.
    """
    if epsilon is None and ask:
        raise UseError("--ask is for private statistics", hint="give --epsilon as well")
    opened = UserStore.open(path := Path(store), fixed_graph=True)
    if epsilon is None:
        StoreLedger(path).look("stats")
        return {"store": str(path), **plain(describe(opened))}
    names = tuple(ask) or DEFAULT_STATISTICS
    answers = release(opened, epsilon=epsilon, names=names, most_examples=most_examples)
    price = {"epsilon": epsilon, "delta": 0.0, "unit": "user", "adjacency": "add-or-remove"}
    return {"store": str(path), "operator_only": False, **price, "answers": encode(answers)}


def budget(
    store: str | os.PathLike[str],
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    order: float | None = None,
    reserve: float | None = None,
) -> dict[str, Any]:
    """Show what a store's people were charged, or fix a total.

    With epsilon and delta a budget is opened, before anything else is done with the store, and
    once. Everything that is ever released of its people then satisfies (epsilon, delta)-DP
    together, whatever is chosen by earlier releases: what would exceed it is refused. It is never
    raised, and never renewed. Without them the ledger is shown: what was spent when on what, what
    is left, and what that would buy.

    Example::

        userdp store budget store --epsilon 8 --delta 1e-6

    Args:
        store: a user store, or its folder.
        epsilon: of everything together; with it a budget is opened. Nothing may have been charged
            or looked at before.
        delta: of everything together; needed with epsilon, and only then.
        order: of the Rényi filter; by default the one that lets the most Gaussian noise through.
        reserve: the share of delta for releases that are known by their own (ε, δ) only, such as
            runs that draw batches of a fixed size; 0 by default.

    Returns:
        What was spent when on what, what is left, what that buys, and the claim of the store, None
        while nothing was charged: ``operator_only``, since it says when people were trained on.

    Raises:
        UseError: the store was used before, or a number is out of range; nothing was written.
    """
    read_meta(path := Path(store))
    ledger = StoreLedger(path)
    if epsilon is not None and delta is not None:
        opened = RenyiFilter.opened(
            epsilon=epsilon, delta=delta, order=order, reserved=reserve or 0.0
        )
        ledger.append(OpenBudget(run_id=new_id(), filter=opened))
    elif any(one is not None for one in (epsilon, delta, order, reserve)):
        raise UseError(
            "a budget is opened by epsilon and delta together: one total for the store's life",
            hint="give --epsilon and --delta; or neither, to see what was spent",
        )
    history = ledger.history()
    return {
        "store": str(path),
        "operator_only": True,
        **overview(history),
        "claim": claim_at(path) if history.charges else None,
    }


def settle(run: str | os.PathLike[str]) -> dict[str, Any]:
    """End an unfinished run for good: no folder of it goes on.

    It costs its whole plan, as it did before: when a run stopped may have been chosen by what its
    steps released.

    Example::

        userdp store settle run

    Args:
        run: an unfinished run, or its folder.

    Returns:
        The steps that the run began and had planned, and the claim of the store.

    Raises:
        UseError: it is finished, or its store is not where it was.
        FailureError: a process trains it.
    """
    record = RunRecord.read(folder := folder_of(run))
    if record.finish is not None:
        raise UseError(f"the run at {folder} is finished: there is nothing to settle")
    run_id, places = record.run_id, [one.resolve() for one in record.folder.stores or ()]
    store = next((one for one in places if run_id in StoreLedger(one).history().ids), None)
    if store is None:
        raise UseError(
            f"no store that knows the run at {folder} lies beside it, or where it lay before",
            hint="settle the run where its store lies",
        )
    history = (ledger := StoreLedger(store)).history()
    # Until it is closed, nobody takes a step in any folder of the run.
    with closing(ledger.counter(run_id, begun=run_id in history.openings)) as counter:
        ledger.append(Settle(run_id=run_id, early=True))
        attempts = counter.attempts
    return {
        "run": str(folder),
        "store": str(store),
        "steps_attempted": attempts,
        "steps_planned": record.plan.steps if record.plan else None,
        "store_claim": claim_at(store),
    }


def members(store: str | os.PathLike[str], *, user: str | None = None) -> dict[str, Any]:
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

    Returns:
        Operator-only: for each state, from 1, the users who ``joined`` in it, and what they were
        charged; and all ``charges``, with the number of the state that the store was in, None where
        that was not written, so that it counts for everybody. Of one person the ``statement``.

    Raises:
        UseError: no store is there, or nobody in it has this id.
    """
    opened = UserStore.open(place := Path(store), fixed_graph=True)
    ledger, name = StoreLedger(place), None if user is None else _person(user)
    ledger.look("members")  # that nobody has this id is an answer too
    if name is not None:
        return {"store": place, "statement": statement_for(opened, name)}
    history = ledger.history()
    states = {one.run_id: state_number(opened, one) for one in history.charges.values()}
    charges = [
        {"id": run_id, "state": None if number is None else number + 1}
        for run_id, number in states.items()
    ]
    joined = [*intakes(opened, history)]
    return {"store": place, "operator_only": True, "joined": joined, "charges": charges}


def forget(
    store: str | os.PathLike[str],
    user: str,
    *,
    also: Sequence[Path] = (),
    yes: bool = False,
    progress: Progress | None = None,
) -> Forgotten:
    """Erase a person from a store and what was made of its text.

    The store becomes the one that would have been prepared without them. Interrupted runs may go
    on. No claim changes: what was released while the person was in the store stays released. Killed
    at any moment, the store holds the person as before, or not at all. Source files, backups and
    copies are the operator's to look through. Where nobody has the id, or weights would go and that
    was not agreed to, nothing changes, and the ledger notes a look: the answer tells who is in the
    store. What is printed is the last statement that can be made for the person: keep it.

    Example::

        userdp store forget store --user ann@example.org

    Args:
        store: a user store, or its folder. No run over it may be open.
        user: the person's id, as prepare read it; - to read it from standard input, which unlike a
            command line stands neither in the list of processes nor in the shell's history.
        also: further folders in which runs over the store lie.
        yes: delete weights that learned from the person without privacy. Without it they are named,
            and nothing is done.
        progress: receives the progress; by default a bar, or lines where stderr is no terminal.

    Raises:
        UseError: nobody in the store has this id, there are weights to delete, a run is open, or
            another process changes the store.
        FailureError: the disk refused.
    """
    name, folders = _person(user), [Path(one) for one in also]
    with shown(progress) as bar:
        return forget_user(Path(store), name, also=folders, yes=yes, progress=bar)


def score(
    store: str | os.PathLike[str],
    *,
    out: str | os.PathLike[str],
    model: str = "bundled",
    micro_batch: int = 32,
    overwrite: bool = False,
    device: str = "auto",
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Score each training example by its perplexity.

    The file is for the operator (mode 0600): scores are exact functions of people's text, and no
    epsilon covers them. It belongs to this store's content and to no other.

    Example::

        userdp store score store --out scores.arrow

    Args:
        store: a user store, or its folder.
        out: the file of scores.
        model: bundled, a folder, or a name on the hub. It must have been trained on public data
            only: a model of these people's text would let one of them choose what is trained on
            of another.
        micro_batch: examples in one pass.
        overwrite: replace the file at out.
        device: auto (cuda where there is one, else cpu), cpu, cuda or cuda:N.
        progress: receives the progress; by default a bar, or lines where stderr is no terminal.

    Returns:
        Operator-only: how many examples were scored, how many have no number, and quantiles.

    Raises:
        UseError: out is in use, the store has no training examples, or the model cannot read its
            tokens or was trained on people's text.
    """
    from userdp.training.store_losses import score_store  # loads torch

    require_new(Path(out), overwrite=overwrite, name="scores.arrow")
    with shown(progress) as bar:
        # Scoring claims nothing, so that it may read a store of any adjacency.
        scored = score_store(
            UserStore.open(Path(store), fixed_graph=True),
            model,
            Path(out),
            batch=micro_batch,
            device=device,
            progress=bar,
        )
    given = {"store": str(store), "scores": str(out), "model": model}
    return {**given, "operator_only": True, **scored}


def _person(user: str) -> str:
    """The id that ``user`` stands for; "-" stands for the first line of standard input.

    What is typed on a command line stands in the list of processes, where everybody on the machine
    may read it, and in the shell's history. Standard input does not.

    Raises:
        UseError: the id is empty, as when nothing was piped in. No record has such a user.
    """
    name = sys.stdin.readline().rstrip("\r\n") if user == "-" else user
    if not name:
        raise UseError("the id of the person is empty, and nobody has such an id")
    return name
