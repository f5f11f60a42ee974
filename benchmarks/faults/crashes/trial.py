"""One case from beginning to end: `Trials.try_` plays it and says what was wrong."""

from __future__ import annotations

import shutil
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.faults.crashes import children, clock, seeds
from benchmarks.faults.crashes.cases import INSTANT, Case, Fault
from benchmarks.faults.crashes.layer import LETHAL, Act, FileLayer
from benchmarks.faults.crashes.oracle import Ledgers, left_behind, noise_problems
from benchmarks.faults.crashes.scenes import SCENES, Scene
from benchmarks.faults.crashes.scenes.base import uncertain_steps
from benchmarks.faults.crashes.twins import TWINS
from benchmarks.faults.crashes.witness import Witness, read_trace

_MOST_LIVES = 6


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What came of a case.

    Args:
        kills: how many processes a kill ended.
        refusals: how many ran into an error of the disk.
        lost: charged steps whose update was lost.
        compared: whether the result was held against that of a command that nobody disturbed.
        problems: what was wrong; none where all held.
        seconds: on the clock.
    """

    kills: int
    refusals: int
    lost: int
    compared: bool
    problems: tuple[str, ...]
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Undisturbed:
    """A scene that nothing went wrong in.

    Args:
        seconds: of the command, on the clock.
        operations: that changed something in its folder.
        result: see `Scene.result`, under test seeds.
    """

    seconds: float
    operations: int
    result: str | None


class Trials:
    """Plays cases in ``place``; what scenes need is made there once.

    Args:
        place: an empty folder.
        twin: the name of a deliberate fault of the library, see `twins`.
    """

    def __init__(self, place: Path, *, twin: str | None = None) -> None:
        self._place, self._twin = place.resolve(), twin
        self._known: dict[tuple[str, frozenset[str]], Undisturbed] = {}
        self._log = self._place / "log"

    def try_(self, case: Case) -> Outcome:
        """Play a case: its faults, one a life, then lives without one until all is done."""
        begin, scene = time.monotonic(), SCENES[case.command]
        whole = self._undisturbed(scene)
        folder, trace = self._fresh(scene)
        ledgers, problems = Ledgers(folder), list[str]()
        lost, kills, refusals = set[str](), 0, 0
        done = False
        for life in range(_MOST_LIVES):
            fault = case.faults[life] if life < len(case.faults) else None
            self._log.unlink(missing_ok=True)
            ended = self._live(scene, folder, trace, case=case, fault=fault, whole=whole, life=life)
            said = self._log.read_text("utf-8", "replace") if self._log.exists() else ""
            if ended.killed:
                kills += 1
                lost |= scene.lost(folder)
            elif ended.status is None:
                problems.append("a process did not end")
                break
            elif ended.status == 0:
                done = fault is None or life + 1 >= len(case.faults)
            elif fault is not None and fault.kind not in (INSTANT, *LETHAL):
                refusals += 1
                lost |= scene.lost(folder)
                if "Traceback" in said or "error: " not in said:
                    problems.append(
                        f"{fault.kind}: no error that a reader understands: {said[-900:]}"
                    )
            else:
                problems.append(f"life {life + 1} ended with {ended.status}: {said[-900:]}")
                break
            problems += [f"after life {life + 1}: {one}" for one in ledgers.problems()]
            problems += [f"after life {life + 1}: {one}" for one in scene.torn(folder)]
            if done:
                break
        compared = False
        if done:
            problems += self._checked(scene, folder)
            problems += scene.problems(folder) + left_behind(folder)
            if case.command == "train":
                lost |= {str(step) for step in uncertain_steps(folder / "run")}
            if case.seeded:
                compared, differs = self._compared(scene, folder, frozenset(lost))
                problems += differs
        elif not problems:
            problems.append(f"the command did not end within {_MOST_LIVES} lives")
        problems += noise_problems(read_trace(trace))
        return Outcome(
            kills=kills,
            refusals=refusals,
            lost=len(lost),
            compared=compared,
            problems=tuple(dict.fromkeys(problems)),
            seconds=round(time.monotonic() - begin, 2),
        )

    def _fresh(self, scene: Scene) -> tuple[Path, Path]:
        """A copy of what the scene needs, at the place that its files name; and the trace."""
        folder, made = self._place / "case", self._place / f"made-{scene.name}"
        trace = self._place / "trace"
        if not made.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            ended = children.run(_told(lambda: scene.make(folder)), log=self._log)
            if ended.status != 0:
                raise RuntimeError(f"{scene.name}: {self._log.read_text('utf-8')[-2000:]}")
            folder.rename(made)
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(made, folder)
        trace.unlink(missing_ok=True)
        return folder, trace

    def _undisturbed(self, scene: Scene, left_out: frozenset[str] = frozenset()) -> Undisturbed:
        """The scene under test seeds, without a fault, but without the updates of some steps."""
        key = scene.name, left_out
        if key not in self._known:
            folder, trace = self._fresh(scene)

            def live() -> int:
                layer, witness = self._watched(folder, trace)
                seeds.install(witness, left_out=frozenset(map(int, left_out)))
                status = scene.act(folder)
                witness.tell("end", operations=layer.operations)
                return status

            self._log.unlink(missing_ok=True)
            ended = children.run(live, log=self._log)
            if ended.status != 0:
                raise RuntimeError(f"{scene.name}: {self._log.read_text('utf-8')[-2000:]}")
            counted = [one["operations"] for one in read_trace(trace) if one["kind"] == "end"]
            self._known[key] = Undisturbed(
                seconds=ended.seconds, operations=max(counted), result=scene.result(folder)
            )
        return self._known[key]

    def _watched(
        self, folder: Path, trace: Path, *, act: Act | None = None, at: int = 0
    ) -> tuple[FileLayer, Witness]:
        layer = FileLayer(folder, act=act, at=at)
        witness = Witness(trace, folder, is_synced=layer.is_synced)
        layer.install()
        witness.install()
        return layer, witness

    def _live(
        self,
        scene: Scene,
        folder: Path,
        trace: Path,
        *,
        case: Case,
        fault: Fault | None,
        whole: Undisturbed,
        life: int,
    ) -> children.Ended:
        """One process that plays the scene, or goes on with it, and what goes wrong in it."""
        instant = fault is not None and fault.kind == INSTANT
        act = None if fault is None or instant else Act(fault.kind)
        at = 0 if fault is None else 1 + int(fault.at * whole.operations)

        def live() -> int:
            if self._twin is not None:
                TWINS[self._twin]()
            if life and case.clock:
                clock.set_back(case.clock)
            _, witness = self._watched(folder, trace, act=act, at=at)
            if case.seeded:
                seeds.install(witness)
            return scene.act(folder)

        kill_after = None if fault is None or not instant else fault.at * whole.seconds
        return children.run(live, log=self._log, kill_after=kill_after)

    def _checked(self, scene: Scene, folder: Path) -> list[str]:
        """What the library says is wrong, asked in a process of its own."""
        said = self._place / "said"

        def check() -> int:
            said.write_text("\n".join(scene.check(folder)), "utf-8")
            return 0

        self._log.unlink(missing_ok=True)
        ended = children.run(check, log=self._log)
        if ended.status != 0:
            return [f"what was left cannot be checked: {self._log.read_text('utf-8')[-900:]}"]
        return said.read_text("utf-8").splitlines()

    def _compared(self, scene: Scene, folder: Path, lost: frozenset[str]) -> tuple[bool, list[str]]:
        """Whether the result was compared, and how it differs from the undisturbed one."""
        result = scene.result(folder)
        if result is None or (lost and scene.name != "train"):
            return False, []
        kept = self._place / "kept"  # the undisturbed scene is played at the same place
        folder.rename(kept)
        try:
            expected = self._undisturbed(scene, lost).result
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            kept.rename(folder)
        if result == expected:
            return True, []
        return True, [f"the result differs from that of an undisturbed command without {set(lost)}"]


def _told(work: Callable[[], None]) -> Callable[[], int]:
    def status() -> int:
        try:
            work()
        except BaseException:
            traceback.print_exc(file=sys.stderr)
            return 1
        return 0

    return status
