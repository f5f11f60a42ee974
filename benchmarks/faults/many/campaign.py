"""Lets all processes play, judges them meanwhile and at the end: `play`."""

from __future__ import annotations

import multiprocessing
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from benchmarks.faults.crashes import children
from benchmarks.faults.crashes.oracle import left_behind, noise_problems, torn_allowed
from benchmarks.faults.crashes.scenes.base import train, userdp
from benchmarks.faults.crashes.scenes.stores import verified
from benchmarks.faults.crashes.witness import Witness, read_trace
from benchmarks.faults.many.judge import Judge, Turns, turns_of
from benchmarks.faults.many.notes import Notes, read_notes
from benchmarks.faults.many.roles import ROLES, Turn, told_by
from benchmarks.faults.many.twins import TWINS
from benchmarks.faults.many.world import ASKED, World, said

_FORKS = multiprocessing.get_context("fork")
_PATIENCE = 150.0
"""Seconds after which a command counts as one that never ends."""
_REFUSALS = 20
"""More of them without a command that is done are a process that starves."""
_PURSE = 25.0
"""Seconds for which a purse is asked."""
_JUDGED = 2.0
"""Seconds between two judgements."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Played:
    """What came of it.

    Args:
        seconds: that it lasted.
        turns: of each process, how often it got its turn, see `judge.Turns`.
        charges: that were acknowledged.
        claims: that were held against what was charged at that moment.
        steps: whose noise was watched.
        purses: admitted answers, of each purse that was asked for more than it holds.
        problems: what was wrong; none where all held.
    """

    seconds: float
    turns: dict[str, dict[str, Any]]
    charges: int
    claims: int
    steps: int
    purses: dict[str, int]
    problems: tuple[str, ...]


def play(
    folder: Path, *, seconds: float, names: Sequence[str] = tuple(ROLES), twin: str | None = None
) -> Played:
    """Make a world in ``folder``, and let the processes of these names play in it.

    Call it in a process that has computed nothing, after `children.warm`: all others are its forks.

    Args:
        folder: empty.
        seconds: how long; a problem ends it.
        names: of `ROLES`.
        twin: the name of a deliberate fault of the library, see `twins`.
    """
    world = World(folder.resolve(), purses=max(2, int(seconds / _PURSE)))
    _must(_in_child(world.make, folder / "log"), folder / "log")
    prices = {"reserve": world.price, "query": ASKED}
    most = _calm_purses(world)
    judge, begin = Judge(world.folder, prices=prices), time.monotonic()
    end, enough = begin + seconds, _FORKS.Event()
    players = [
        _FORKS.Process(target=_play_role, args=(world, name, begin, end, enough, twin))
        for name in names
    ]
    for player in players:
        player.start()
    problems: list[str] = []
    while any(player.is_alive() for player in players):
        time.sleep(_JUDGED)
        notes = read_notes(world.notes)
        problems += judge.problems(notes)
        problems += [
            f"{one['who']}: {one['command']} {one['said']}" for one in notes if _failed(one)
        ]
        if problems:
            enough.set()
            break
    for player in players:
        player.join()
    ended = time.monotonic()
    if not problems:
        problems += _at_rest(world, judge)
    notes = read_notes(world.notes)
    problems += noise_problems(read_trace(folder / "trace"))
    admitted = _admitted(world, notes, most, problems)
    turns = turns_of(notes, begin=begin, end=end)
    if not problems:  # else all were stopped early
        problems += [f"{name} never got its turn" for name in names if _starved(turns.get(name))]
    return Played(
        seconds=round(ended - begin, 1),
        turns={name: asdict(one) for name, one in sorted(turns.items())},
        charges=sum(note["kind"] == "charged" for note in notes),
        claims=judge.held,
        steps=sum(event["kind"] == "noise" for event in read_trace(folder / "trace")),
        purses=admitted,
        problems=tuple(dict.fromkeys(problems)),
    )


def _play_role(
    world: World, name: str, begin: float, end: float, enough: Event, twin: str | None
) -> None:
    """The process of a role: one command after another, until the end, or until it is enough."""
    notes = Notes(world.notes / f"{name}.jsonl")
    role = ROLES[name](world, name=name, notes=notes, begin=begin, seconds=end - begin)
    log, usual = world.folder / f"{name}.log", 3.0
    while time.monotonic() < end and not enough.is_set():
        turn = role.turn()
        log.unlink(missing_ok=True)
        killed_at = role.draw.uniform(0, usual) if role.draw.random() < turn.chance else None
        ended = children.run(
            partial(_command, world, turn, notes, twin),
            log=log,
            kill_after=killed_at,
            patience=_PATIENCE,
        )
        said = log.read_text("utf-8", "replace") if log.exists() else ""
        outcome = _outcome(turn, ended, said)
        if outcome == "done":
            usual = ended.seconds
        ended_with = "did not end" if ended.status is None else f"ended with {ended.status}"
        told = {"said": f"{ended_with}: {said[-1500:]}"} if outcome == "failed" else {}
        notes.tell(
            "outcome", who=name, command=turn.name, outcome=outcome, seconds=ended.seconds, **told
        )
        role.after(outcome, said)
        time.sleep(role.draw.uniform(0, role.rest))


def _command(world: World, turn: Turn, notes: Notes, twin: str | None) -> int:
    """In the child: the command, with all that it charges and draws noted."""
    if twin is not None:
        TWINS[twin]()
    notes.watch(meet=turn.meet)
    # What was written is on the disk or not: nobody cuts the power here.
    Witness(world.folder / "trace", world.folder, is_synced=lambda path: True).install()
    return turn.work()


def _outcome(turn: Turn, ended: children.Ended, said: str) -> str:
    if ended.killed:
        return "killed"
    if ended.status == 0:
        return "done"
    known = any(reason in said for reason in turn.reasons)
    return "refused" if known and ended.status is not None else "failed"


def _failed(note: dict[str, Any]) -> bool:
    return bool(note["kind"] == "outcome" and note["outcome"] == "failed")


def _at_rest(world: World, judge: Judge) -> list[str]:
    """When nobody plays any more: what was killed goes on, and all is held against the notes."""
    notes = Notes(world.notes / "rest.jsonl")
    abandoned = {note["run"] for note in read_notes(world.notes) if note["kind"] == "abandoned"}
    log, found = world.folder / "rest.log", list[str]()
    for resume in sorted(world.folder.glob("run-*/resume.json")):
        run = resume.parent.name
        if run in abandoned:
            continue
        turn = Turn(name=run, work=partial(train, world.folder, run))
        ended = children.run(partial(_command, world, turn, notes, None), log=log)
        words = log.read_text("utf-8", "replace")
        if ended.status != 0 and "the store is not the one that the run at" not in words:
            found.append(f"{run} cannot be gone on with: {words[-900:]}")
        log.unlink()

    def check() -> None:
        since, (status, claim) = time.monotonic(), said("account", "--ledger", world.store)
        if status == 0:  # else nobody did anything with it
            notes.tell(
                "claim", subject="store", ledger=str(world.store / "ledger.jsonl"), run_id=None,
                epsilon=told_by(claim), since=since,
            )  # fmt: skip
        notes.tell("verified", problems=verified(world.store))

    _must(_in_child(check, log), log)
    last = read_notes(world.notes)
    found += [one for note in last if note["kind"] == "verified" for one in note["problems"]]
    found += judge.problems(last)
    left = [one for one in left_behind(world.folder) if not one.startswith("run-")]
    return found + left


def _calm_purses(world: World) -> list[int]:
    """How many answers a purse of each kind admits, asked for one after another."""
    found = []
    for number in range(2):
        purse = world.purse(number)
        place = world.folder / "calm" / purse.name
        shutil.copytree(purse, place)
        for _ in range(50):
            ask = partial(userdp, "stats", place, "--epsilon", ASKED, "--ask", "users")
            if children.run(ask, log=world.folder / "calm.log").status != 0:
                break
        found.append(_asked(place))
        shutil.rmtree(world.folder / "calm")
    return found


def _asked(purse: Path) -> int:
    lines, _ = torn_allowed(purse / "ledger.jsonl")
    return sum(line["kind"] == "query" for line in lines)


def _admitted(
    world: World, notes: list[dict[str, Any]], most: list[int], problems: list[str]
) -> dict[str, int]:
    """Of each purse how many answers it gave; a problem where it gave more than one after another.

    One that refused somebody was asked for more than it holds, and must have given all of it.
    """
    found = {}
    refused = {note["ledger"] for note in notes if note["kind"] == "refused"}
    for number in range(world.purses):
        purse, asked = world.purse(number), _asked(world.purse(number))
        if asked > most[number % 2]:
            problems.append(f"{purse.name} holds {most[number % 2]} answers, and gave {asked}")
        if str(purse / "ledger.jsonl") in refused:
            found[purse.name] = asked
            if asked < most[number % 2]:
                problems.append(f"{purse.name} refused an answer that it had left")
    return found


def _starved(turns: Turns | None) -> bool:
    """Whether a process ended no command at all, or was refused again and again."""
    return turns is None or (not turns.done and turns.refused > _REFUSALS)


def _in_child(work: Any, log: Path) -> children.Ended:
    def status() -> int:
        work()
        return 0

    return children.run(status, log=log)


def _must(ended: children.Ended, log: Path) -> None:
    if ended.status != 0:
        raise RuntimeError(log.read_text("utf-8")[-3000:])
    log.unlink(missing_ok=True)
