"""The trials of a tuning: begun, resumed and scored; and the winner, with its claim.

Each trial is a run with a ledger of its own. A trial that crashed goes on with its own settings: a
candidate drawn in its place would be one that nobody priced. Trials are trained one after another.
Several processes may work on one folder, each on a trial of its own.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from userdp.claims import claim
from userdp.claims.ledger_lineage import bases_of, lineage_between, parts_of, payer_of, run_lineage
from userdp.claims.lineage import ConditionKind, Lineage, about, of_parts
from userdp.core import files
from userdp.core.codec import encode
from userdp.core.errors import FailureError, Interrupted, UseError
from userdp.core.interrupts import on_interrupt
from userdp.core.stages import Progress
from userdp.data.user_store import UserStore, require_intact
from userdp.ledger import RunFolder, RunRecord, StoreLedger, lines
from userdp.ledger.charged_parts import Choice
from userdp.ledger.run_ledger import is_finished
from userdp.ledger.store_ledger import new_id
from userdp.plans import PrivateSelection
from userdp.sweeping.request import Candidate, SweepRequest, TuningMode
from userdp.sweeping.sweep_folder import SweepFolder
from userdp.sweeping.trial_scores import (
    Score,
    behind,
    exact_score,
    inside_the_noise,
    released_score,
    selection_score,
)
from userdp.training.causal_models import read_model
from userdp.training.config import RunOptions
from userdp.training.devices import AUTO, choose_device
from userdp.training.loop import train
from userdp.training.model_origin import lineage_of_model, lineage_of_text
from userdp.training.open_run import constants_digest, settle_finished
from userdp.training.store_losses import user_losses

_POLL = 0.5  # seconds between looks at trials that another process trains


@dataclass(frozen=True, kw_only=True, slots=True)
class Tuned:
    """The result of a tuning.

    Args:
        request: the request that its folder keeps.
        store: the store that was charged.
        winner: the folder that may be handed on; None where a private selection drew no candidate.
        score: of the winner.
        settings: of the winner.
        trials: settings and score of each trial, best first; empty for a private selection, which
            may tell nothing but its winner.
    """

    request: SweepRequest
    store: Path
    winner: Path | None = None
    score: Score | None = None
    settings: dict[str, Any] | None = None
    trials: tuple[dict[str, Any], ...] = ()

    @property
    def inside_the_noise(self) -> list[int]:
        """The numbers of trials that may as well be better than the winner."""
        return [
            one["trial"]
            for one in self.trials
            if inside_the_noise(one["behind"], one["behind_error"])
        ]

    def to_dict(self) -> dict[str, Any]:
        """The winner's claim, recomputed from its ledger, and the rest as plain values."""
        request, score = self.request, self.score
        return {
            "tuning": str(request.mode),
            "chosen_by": request.in_words,
            "operator_only": request.mode is TuningMode.NON_PRIVATE,
            "split": str(request.split),
            "candidates": len(request.candidates),
            "score_epsilon": None if request.tuning is None else request.tuning.score_epsilon,
            **({} if self.winner is None else claim(self.winner).to_dict()),
            "winner": None if self.winner is None else str(self.winner),
            "settings": self.settings,
            "score": None if score is None else score.value,
            "score_error": None if score is None else score.error,
            "inside_the_noise": self.inside_the_noise,
            "trials": list(self.trials),
            "store_epsilon": claim(self.store).guarantee.epsilon,
        }


def run_sweep(
    store: UserStore,
    out: Path,
    request: SweepRequest | None,
    *,
    resume: bool = False,
    device: str = AUTO,
    progress: Progress | None = None,
) -> Tuned:
    """Train every trial, score it, and copy the best to ``out/winner``.

    Guarantee: ``out/winner`` satisfies the claim of its own ledger. With `TuningMode.COMPOSITION`
    and `TuningMode.PRIVATE_SELECTION` that claim covers the choice, and everything is charged in
    the store's ledger before it is drawn; with `TuningMode.NON_PRIVATE` it covers only the
    winner's run, and its ledger says that the choice was not private.

    Args:
        store: trials train on it and are scored on it; its ledger is charged.
        out: the tuning's folder; new, unless ``resume``.
        request: the candidates and their prices; None goes on with the request that ``out`` keeps.
        resume: go on with an interrupted tuning, or beside another process that works on it:
            finished trials and scores are kept.
        device: of the trials and their scores; see `userdp.training.devices`.
        progress: is told how far the present trial is; operator-only.

    Raises:
        UseError: ``out`` is not new, or keeps another request.
        Interrupted: by Ctrl-C or SIGTERM; the running trial has finished the step that it had
            charged, and ``resume`` goes on with it.
    """
    choose_device(device)
    folder, digest = SweepFolder(out), store.meta.content_sha256
    if resume:
        folder.resume(request, digest)
    elif request is None:
        raise UseError("a new tuning needs its candidates", hint="give --plan and --tuning")
    else:
        folder.begin(request, digest)
    left = "between two steps: trials and scores that are finished are kept"
    with on_interrupt(Interrupted(left, resume=True), always=True):
        files.sweep(out)
        return _Sweep(store=store, folder=folder, device=device, shown=progress or Progress()).run()


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """A run of a tuning: its candidate, and the slot of a private selection that pays for it."""

    candidate: Candidate
    slot: str | None = None


class _BusyError(FailureError):
    """Another process holds the lock."""


@dataclass(kw_only=True)
class _Sweep:
    """A tuning in the hands of this process; its trials by number, from 1."""

    store: UserStore
    folder: SweepFolder
    device: str
    shown: Progress
    trials: dict[int, Trial] = field(default_factory=dict)

    def run(self) -> Tuned:
        """Finish all trials that no other process works on, wait for the others, and choose."""
        self.trials = dict(enumerate(self._planned(), start=1))
        while waiting := self.trials.keys() - self.folder.scores():
            if not sum(self._finish(number) for number in sorted(waiting)):
                time.sleep(_POLL)
        while True:
            with self._alone("winner") as alone:
                if alone:
                    return self._choose()
            time.sleep(_POLL)

    def _planned(self) -> list[Trial]:
        """The trials, noted in the store's ledger before any of them runs."""
        request, sweep_id = self.folder.begun.request, self.folder.begun.sweep_id
        base = lineage_of_model(self.store, name=request.candidates[0].config.model)
        if request.tuning is not None and base.parts and math.isinf(base.guarantee().epsilon):
            raise UseError(
                "nothing is claimed of the model that all trials would begin from, so that nothing "
                "could be claimed of the winner",
                hint="begin from another model, or tune without a claim: --tuning non-private",
            )
        require_intact(self.store)
        ledger = StoreLedger(self.store.path)
        candidates = {
            constants_digest(one.plan, encode(one.config), self.store): one
            for one in request.candidates
        }
        begun = lines.BeginTuning(run_id=sweep_id, constants=tuple(candidates))
        if not isinstance(request.tuning, PrivateSelection):
            ledger.append(begun)
            return [Trial(candidate=one) for one in candidates.values()]
        # From the operating system's randomness. In the order of their random ids, in which a
        # ledger gives them back: a resumed tuning counts them alike.
        ids = sorted(new_id() for _ in range(request.tuning.repetitions.draw()))
        slots = {one: secrets.choice([*candidates]) for one in ids}
        charged = lines.Charge(
            pays_for=Choice(id=sweep_id, tuning=request.tuning),
            state=self.store.meta.state.id,
            logged=True,
        )
        history = ledger.append(replace(begun, slots=slots), charged)
        slots = dict(history.tunings[sweep_id][1].slots)  # those of the first time
        return [Trial(candidate=candidates[one], slot=slot) for slot, one in slots.items()]

    @contextmanager
    def _alone(self, what: str) -> Iterator[bool]:
        """Whether this process holds the lock of ``what`` for the block, and no other does."""
        try:
            with files.exclusive(self.folder.path / f".{what}.lock", refusal=_BusyError("held")):
                yield True
        except _BusyError:
            yield False

    def _finish(self, number: int) -> bool:
        """Train a trial and score it; False where another process does, or did."""
        run, candidate = self.folder.run(number), self.trials[number].candidate
        with self._alone(f"trial-{number:03d}") as alone:
            if not alone or number in self.folder.scores():
                return False
            self.shown.stage(f"trial {number} of {len(self.trials)}", None)
            # For the operator in every mode: only the winner is copied out.
            files.operator_folder(run.path)
            if is_finished(run.path):  # a kill may have come before the store was told
                settle_finished(run, StoreLedger(self.store.path))
            else:
                train(
                    self.store,
                    candidate.plan,
                    candidate.config,
                    out=run.path,
                    options=RunOptions(
                        device=self.device,
                        resume=run.begun,
                        slot=self.trials[number].slot,
                        allow_large_delta=True,  # whoever asked for the tuning has judged its plans
                    ),
                    progress=self.shown,
                )
            if self.folder.begun.request.tuning is None and candidate.config.no_exact_log:
                StoreLedger(self.store.path).look("tune")  # else the trial's charge says it
            model = read_model(str(run.model), store=self.store).to(choose_device(self.device))
            split, batch = self.folder.begun.request.split, candidate.config.micro_batch
            losses = user_losses(model, self.store, split, batch=batch)
            self.folder.note(number, self._score(number, run, losses))
            return True

    def _score(self, number: int, run: RunFolder, losses: Any) -> Score:
        request, store = self.folder.begun.request, self.store
        if request.tuning is None:
            return exact_score(losses)
        price = {"epsilon": request.tuning.score_epsilon, "bound": request.loss_bound}
        if isinstance(request.tuning, PrivateSelection):
            score = selection_score(losses, **price)
            drawn = lines.Answer(run_id=RunRecord.read(run.path).run_id, value=score.value)
            # The first score of a trial that was scored before: nobody would pay for a second.
            return replace(score, value=StoreLedger(store.path).append(drawn).answers[drawn.run_id])
        subject = f"loss on {request.split}, sweep {self.folder.begun.sweep_id} trial {number:03d}"
        lineage = run_lineage(RunRecord.read(run.path))
        # Every trial is scored, so that being scored is no choice.
        kept = (one for one in lineage.conditions if one.kind is not ConditionKind.CHOSEN)
        of = replace(lineage, conditions=tuple(kept))
        return released_score(store, losses, subject=subject, of=of, **price)

    def _choose(self) -> Tuned:
        """Release the trial with the best score, the first of equal ones."""
        sweep_id, request = self.folder.begun.sweep_id, self.folder.begun.request
        store = StoreLedger(self.store.path)
        if not self.trials:
            return Tuned(request=request, store=self.store.path)
        scores = self.folder.scores()
        values = {number: one.value for number, one in scores.items() if one.value is not None}
        ranked = sorted(values, key=lambda number: (-values[number], number))
        if not ranked:
            raise FailureError("no trial has a score: there is nothing to choose by")
        best = ranked[0]
        tuning, payer = request.tuning, None
        if tuning is not None:
            payer = payer_of(store.history(), Choice(id=sweep_id, tuning=tuning))
        released, lineage = self.folder.release(best, self._inherited(best), payer)
        for weights in released:
            store.append(lines.Release(run_id=sweep_id, weights=weights, lineage=lineage.plain))
        told = []
        if not isinstance(request.tuning, PrivateSelection):
            told = [*ranked, *sorted(self.trials.keys() - values)]
        return Tuned(
            request=request,
            store=self.store.path,
            winner=self.folder.winner,
            score=scores[best],
            settings=self.trials[best].candidate.settings,
            trials=tuple(self._row(number, scores[number], scores[best]) for number in told),
        )

    def _row(self, number: int, score: Score, winner: Score) -> dict[str, Any]:
        """A trial in the operator's table."""
        less, error = (None, None) if score is winner else behind(score, winner)
        return {
            "trial": number,
            "run": str(self.folder.run(number).path),
            **self.trials[number].candidate.settings,
            "loss": score.loss,
            "standard_error": score.error,
            "behind": less,
            "behind_error": error,
            "note": score.note,
        }

    def _inherited(self, winner: int) -> Lineage:
        """The winner's ancestors besides its own run and the price of choosing it.

        They are everything that the store had released before the grid was fixed, when the tuning
        began; the base of each trial, as it was known then; and the charges that no candidate's
        price holds: of trials that were begun and thrown away.
        """
        sweep_id, request = self.folder.begun.sweep_id, self.folder.begun.request
        history = StoreLedger(self.store.path).history()
        begun, tuning = history.tunings[sweep_id]
        lineage = lineage_between(history, before=begun)
        lineage += lineage_of_model(self.store, name=request.candidates[0].config.model)
        later = history.charged(after=begun)
        ours = [charge for charge in later if charge.constants in tuning.constants]
        # A private selection is one charge, under its own id, which pays for all of its trials.
        selection = [charge for charge in later if charge.run_id == sweep_id]
        lineage = sum(bases_of(history, [*ours, *selection]), lineage)
        folders = {number: self.folder.run(number).path for number in self.trials}
        runs = {number: RunRecord.read(folder).run_id for number, folder in folders.items()}
        unpaid = [charge for charge in ours if charge.run_id not in runs.values()]
        looks = []
        if request.tuning is None:
            looks, unpaid = ["tune"], []  # a condition, which the other trials are in
        lineage += of_parts(parts_of(history, unpaid), *about(ConditionKind.LOOKS, looks))
        return lineage + lineage_of_text(self.store)
