"""Many runs, of which one is chosen: begun, resumed, scored, and what the winner claims.

Each trial is a run with a ledger of its own. A trial that crashed goes on where it was, with its
own settings: one drawn in its place would be another candidate that nobody priced.
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from userdp import files
from userdp.claims.conditions import ConditionKind
from userdp.claims.inheritance import run_lineage
from userdp.claims.lineage import Lineage
from userdp.codec import encode
from userdp.data.progress import NoProgress, Progress
from userdp.data.store import UserStore
from userdp.data.verify import require_intact
from userdp.errors import FailureError, UseError
from userdp.interrupts import told
from userdp.ledger import RunFolder, StoreLedger
from userdp.ledger.journal import exclusive, read_entries
from userdp.ledger.store_journal import new_id
from userdp.plans import PrivateSelection
from userdp.sweeping.folder import SweepFolder
from userdp.sweeping.inheritance import inherited_by, require_priced_base
from userdp.sweeping.request import Candidate, SweepRequest
from userdp.sweeping.result import SweepResult
from userdp.sweeping.scores import (
    Score,
    exact_score,
    released_score,
    selection_error,
    selection_score,
    trial_losses,
)
from userdp.sweeping.standing import standings
from userdp.training.devices import AUTO
from userdp.training.opening import constants_digest, settle_finished
from userdp.training.side_by_side import (
    Launch,
    SideBySide,
    is_held,
    last_words,
    steps_done,
    train_arguments,
)

Say = Callable[[str], None]


def run_sweep(
    store: UserStore,
    out: Path,
    request: SweepRequest | None,
    *,
    jobs: int = 1,
    resume: bool = False,
    device: str = AUTO,
    progress: Progress | None = None,
    say: Say = lambda text: None,
    launch: Launch | None = None,
    poll: float = 0.5,
) -> SweepResult:
    """Train every trial, score it, and copy the best to ``out/winner``.

    Guarantee: ``out/winner`` satisfies the claim of its own ledger. With `TuningMode.COMPOSITION`
    and `TuningMode.PRIVATE_SELECTION` that claim covers the choice, and everything is charged in
    the store's ledger before it is drawn; with `TuningMode.NON_PRIVATE` it covers only the
    winner's run, and its ledger says that the choice was not private.

    Args:
        store: trained on, scored on, charged.
        out: the sweep's folder; new, unless ``resume``.
        request: what to do; may be left out to go on with what ``out`` keeps.
        jobs: trials that train at the same time, each on a CUDA device of its own where that is
            where they train; the claim does not depend on it.
        resume: go on with an interrupted sweep: finished trials and scores are kept.
        device: of the trials and their scores; see `userdp.training.devices.seats`.
        progress: is told how many steps of all trials are done; operator-only.
        say: is told what happens; operator-only.
        launch: starts a trial; a `userdp` process by default.
        poll: seconds between looks at the trials.

    Raises:
        UseError: ``out`` is in use or not new, what is asked for is not what it keeps, or there are
            fewer CUDA devices than ``jobs``.
        FailureError: a trial failed; the others were finished, and ``resume`` goes on with it.
        Interrupted: by Ctrl-C or SIGTERM; trials that were running have finished the step that
            they had charged, and ``resume`` goes on with them.
    """
    processes = SideBySide(device, jobs, start=launch)
    if not resume and request is None:
        raise UseError("a new sweep needs its candidates", hint="give --plan and --tuning")
    if not out.exists():
        if resume:
            raise UseError(f"there is no sweep at {out} to resume", hint="leave out --resume")
        files.operator_folder(out)
    folder = SweepFolder(out)
    left = "between two steps: trials and scores that are finished are kept"
    with (
        told(left, resume=lambda: folder.begun, always=True),
        exclusive(
            folder.lock,
            refusal=FailureError(
                f"the sweep folder {out} is in use by another process",
                hint="wait for it, or choose another --out",
            ),
        ),
    ):
        files.sweep(out)
        digest = store.meta.content_sha256
        if resume:
            sweep_id, kept = folder.kept(digest)
            if request is not None and request != kept:
                raise UseError(
                    f"this is not what the sweep at {out} began with: a grid or a budget that "
                    "changes after a look at the first trials has no claim",
                    hint="give --resume without other options, or begin a new sweep",
                )
            request = kept
        else:
            assert request is not None
            sweep_id = folder.begin(request, digest)
        return _Sweep(
            store=store,
            folder=folder,
            request=request,
            sweep_id=sweep_id,
            processes=processes,
            progress=progress or NoProgress(),
            say=say,
            poll=poll,
        ).run()


@dataclass(kw_only=True)
class _Sweep:
    """A sweep whose folder this process holds."""

    store: UserStore
    folder: SweepFolder
    request: SweepRequest
    sweep_id: str
    processes: SideBySide
    progress: Progress
    say: Say
    poll: float
    trials: list[int] = field(default_factory=list)
    slots: list[str] = field(default_factory=list)

    @property
    def _selects(self) -> bool:
        """Whether a private selection pays for all trials."""
        return isinstance(self.request.tuning, PrivateSelection)

    def run(self) -> SweepResult:
        """Everything that is not done yet, in order."""
        require_priced_base(self.request, self.store)
        require_intact(self.store)
        charges = StoreLedger(self.store.path)
        charges.begin_sweep(self.sweep_id, self._constants)
        tuning = self.request.tuning
        if isinstance(tuning, PrivateSelection):
            if self.sweep_id not in charges.history().charges:
                charges.reserve_selection(self.sweep_id, tuning, state=self.store.meta.state.id)
            drawn = charges.slots(self.sweep_id, partial(self._draw, tuning))
            self.slots = list(drawn)
            self.trials = [self._constants.index(constants) for constants in drawn.values()]
        else:
            self.trials = list(range(len(self.request.candidates)))
        planned = sum(self._candidate(number).plan.steps for number in self._numbers())
        self.progress.stage("sweep", planned, unit="step")
        failed = self._train()
        if failed:
            number, why = failed[0]
            raise FailureError(
                f"{len(failed)} of the sweep's trials failed; trial {number}: {why}",
                hint="userdp tune STORE --out DIR --resume goes on with them",
            )
        return self._choose()

    @property
    def _constants(self) -> list[str]:
        """Of each candidate: what a slot is for."""
        return [
            constants_digest(one.plan, encode(one.config), self.store)
            for one in self.request.candidates
        ]

    def _draw(self, tuning: PrivateSelection) -> dict[str, str]:
        """The trials of a private selection, from the operating system's randomness."""
        constants = self._constants
        return {
            new_id(): constants[secrets.randbelow(len(constants))]
            for _ in range(tuning.repetitions.draw())
        }

    def _numbers(self) -> range:
        return range(1, len(self.trials) + 1)

    def _candidate(self, number: int) -> Candidate:
        return self.request.candidates[self.trials[number - 1]]

    def _train(self) -> list[tuple[int, str]]:
        """Finish every trial and score it; those that failed, with their last words."""
        scored = self.folder.scores()
        waiting = deque(number for number in self._numbers() if number not in scored)
        failed: list[tuple[int, str]] = []
        told: set[int] = set()
        with self.processes as processes:
            while waiting or processes.running:
                for _ in range(len(waiting)):
                    if not processes.free:
                        break
                    number = waiting.popleft()
                    if self.folder.run(number).finished:
                        self._score(number, device=processes.free[0])
                    elif is_held(self.folder.run(number)):  # it outlived an earlier sweep
                        if number not in told:
                            self.say(f"trial {number} is still trained by an earlier process")
                            told.add(number)
                        waiting.append(number)
                    else:
                        self._start(number)
                for number, status in processes.ended().items():
                    if self.folder.run(number).finished or is_held(self.folder.run(number)):
                        waiting.appendleft(number)  # to be scored, or trained by a child still
                    else:
                        why = last_words(self.folder.log(number))
                        self.say(f"trial {number} failed: {why}")
                        failed.append((number, f"{why} (exit status {status})"))
                self.progress.at(sum(steps_done(self.folder.run(n)) for n in self._numbers()))
                if waiting or processes.running:
                    time.sleep(self.poll)
        return failed

    def _start(self, number: int) -> None:
        candidate, run = self._candidate(number), self.folder.run(number)
        # Closed in every mode: a trial is chosen from, and only the winner is copied out.
        files.operator_folder(run.path)
        arguments = train_arguments(
            self.store.path,
            run,
            self.folder.write_settings(number, candidate),
            slot=self.slots[number - 1] if self._selects else None,
        )
        self.say(f"trial {number}: {'resumed' if '--resume' in arguments else 'begun'}")
        self.processes.start(number, arguments, log=self.folder.log(number))

    def _score(self, number: int, *, device: str) -> None:
        request, run = self.request, self.folder.run(number)
        settle_finished(run, StoreLedger(self.store.path))  # a kill may have kept the trial from it
        candidate = self._candidate(number)
        losses = trial_losses(
            run,
            self.store,
            request.split,
            batch=candidate.config.micro_batch,
            device=device,
        )
        if request.tuning is None:
            score = exact_score(losses)
            self.folder.keep_losses(number, losses)
        elif self._selects:
            draw = partial(
                selection_score,
                losses,
                epsilon=request.tuning.score_epsilon,
                bound=request.loss_bound,
            )
            error = selection_error(epsilon=request.tuning.score_epsilon, bound=request.loss_bound)
            score = Score(value=StoreLedger(self.store.path).score(run.run_id, draw), error=error)
        else:
            score = released_score(
                self.store,
                losses,
                epsilon=request.tuning.score_epsilon,
                bound=request.loss_bound,
                subject=f"loss on {request.split}, sweep {self.sweep_id} trial {number:03d}",
                of=_of_each(run),
            )
        self.folder.note(number, candidate, score)
        self.say(f"trial {number} of {len(self.trials)}: trained and scored")

    def _choose(self) -> SweepResult:
        """The best score, the first of equal ones, and the winner's folder."""
        if not self.trials:
            return SweepResult(request=self.request)
        scores = self.folder.scores()
        values = {number: one.value for number, one in scores.items() if one.value is not None}
        ranked = sorted(values, key=lambda number: (-values[number], number))
        if not ranked:
            raise FailureError("no trial has a score: there is nothing to choose by")
        best = ranked[0]
        inherited = inherited_by(
            best,
            store=self.store,
            folder=self.folder,
            request=self.request,
            sweep_id=self.sweep_id,
            numbers=self._numbers(),
        )
        released, lineage = self.folder.release(best, self.request, self.sweep_id, inherited)
        for weights in released:
            StoreLedger(self.store.path).release(
                self.sweep_id, weights=weights, lineage=lineage.plain
            )
        lost = [number for number in self._numbers() if number not in ranked]
        beside = {} if self._selects else standings(best, scores, self.folder.losses())
        rows = [
            {
                "trial": number,
                "run": str(self.folder.run(number).path),
                **self._candidate(number).settings,
                "loss": scores[number].loss,
                "standard_error": scores[number].error,
                "behind": beside[number].behind if number in beside else None,
                "behind_error": beside[number].error if number in beside else None,
                "note": scores[number].note,
            }
            for number in (*ranked, *lost)
        ]
        return SweepResult(
            request=self.request,
            winner=self.folder.winner,
            score=scores[best],
            settings=self._candidate(best).settings,
            trials=() if self._selects else tuple(rows),
            inside_the_noise=tuple(n for n in ranked if n in beside and beside[n].inside_the_noise),
        )


def _of_each(run: RunFolder) -> Lineage:
    """What a score of a trial is about; every trial has one, so that none was chosen for it."""
    lineage = run_lineage(run.ledger, read_entries(run.ledger))
    kept = (one for one in lineage.conditions if one.kind is not ConditionKind.CHOSEN)
    return replace(lineage, conditions=tuple(kept))
