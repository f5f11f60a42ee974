"""How a run begins, resumes and ends: its folder, its ledger, and its charge in the store's ledger.

A kill between any two lines does no harm: resuming does again only what is not done yet.

1. The folder is locked, so that no two processes begin in it.
2. The nonce of this opening is in the folder first, then in the store's ledger, then in the run's.
   A folder that holds the store's last nonce, as one to be written or as one that was, is the
   folder that was opened last; a copy of it, or an earlier state, is refused. The folder keeps the
   whole line of the opening, which names the one before it too, so that any number of openings may
   be killed one after another.
3. The store is charged before the run's ledger exists, so that no step can be taken whose plan the
   store does not know.
4. The end is in the run's ledger before the store settles: `settle_finished` does what a kill
   between the two left.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from userdp.claims.ledger_lineage import inherited, lineage_between, payer_of, run_lineage
from userdp.claims.lineage import COPIED, Lineage, lineage_from
from userdp.claims.released_files import bound_files
from userdp.claims.weights import digest_of, has_weights, known_of
from userdp.core import files
from userdp.core.codec import digest, encode
from userdp.core.errors import FailureError, UseError, warn
from userdp.data.ownership import FIRST_OWNER
from userdp.data.store_folder import remember
from userdp.data.store_meta import StateKind, read_meta
from userdp.data.user_store import UserStore, require_intact
from userdp.gradients import Loss, causal_lm_loss
from userdp.ledger import RunFolder, RunLedger, RunRecord, StoreLedger
from userdp.ledger.charged_parts import Part, Unclaimed, of_run
from userdp.ledger.lines import Begin, Charge, Finish, Line, Open, Release, Settle, Trial
from userdp.ledger.permitted_lines import follow
from userdp.ledger.run_folder import Resume, train_toml
from userdp.ledger.run_ledger import is_finished
from userdp.ledger.store_history import History
from userdp.ledger.store_ledger import new_id
from userdp.plans import Plan
from userdp.plans.small_delta import without_epsilon
from userdp.training.causal_models import resolve
from userdp.training.config import PlainPlan, PrivateOptions
from userdp.version import __version__


@dataclass(frozen=True, kw_only=True, slots=True)
class Training:
    """All that a run is made of: model, optimizer, store, plan and folder; passed on as it is.

    Args:
        model: its parameters with ``requires_grad`` are trained.
        optimizer: over exactly those parameters.
        store: whose training split is read, and whose people are charged.
        plan: of the run; a `PlainPlan` trains without privacy.
        out: the run's folder; new, unless it is resumed.
        loss: per-row loss.
        options: of the run; with test seeds it may claim nothing.
        identity: digests of anything else that a resumed run must share; kept operator-only.
        facts: public constants to note in the ledger's first line.
        train: settings of ``userdp train`` by section, to note in train.toml. Only its loop gives
            them: they are all its constants, and the constants of any other loop are unknown.
        began: the model that the run begins with (`userdp.training.released_model.began_with`);
            operator-only.
        base: what the model's weights descend from, adapters included; None to look it up by the
            weights themselves in the store's ledger, and in the folder that ``model.name_or_path``
            names.
        slot: of a private selection in the store's ledger, which pays for this run; the run then
            claims nothing by itself (`userdp.sweeping.runs`).
        log_only: exact numbers are written down and nothing in the loop follows them: they are a
            look for later runs, and no condition of this run's claim.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    store: UserStore
    plan: Plan | PlainPlan
    out: Path
    loss: Loss = causal_lm_loss
    options: PrivateOptions = field(default_factory=PrivateOptions)
    identity: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    train: Mapping[str, Mapping[str, Any]] | None = None
    began: Mapping[str, Any] = field(default_factory=dict)
    base: Lineage | None = None
    slot: str | None = None
    log_only: bool = False


def constants_digest(
    plan: Plan | None,
    learning: Mapping[str, Any] | None,
    store: UserStore,
    *,
    scores: Path | None = None,
) -> str:
    """The digest of a run's constants: of what a tuning tries, and of what a slot pays for.

    The constants are the plan and the configuration, and the text, the base model and the scores
    themselves: whoever exchanges one of them after a look has chosen it by the look.
    """
    name = str((learning or {}).get("model", ""))
    base = Path(resolve(name))
    return digest(
        {
            "plan": encode(plan),
            "learning": dict(learning or {}),
            "text": store.meta.content_sha256,
            "base": digest_of(base) if name and has_weights(base) else "",
            "scores": None if scores is None else files.digest_of_file(scores),
        }
    )


def open_run(of: Training) -> OpenRun:
    """Begin a run in a new folder, or continue one.

    Args:
        of: the training; its ``base`` must be known. Neither the model nor the optimizer is
            looked at.

    Raises:
        FailureError: another process holds the folder, or a copy of it; or the disk refused.
        UseError: the folder is not a new one (or, to resume, not an interrupted run's, or a copy
            of one); the store is damaged; the store, the plan, the model or the configuration is
            not what the run began with.
    """
    folder, out, made = RunFolder(of.out), of.out, not of.out.exists()
    require_intact(of.store)  # before the folder is made and anything is charged
    held = FailureError(
        f"the run folder {out} is in use by another process, or by a run of this one that is open",
        hint="wait for it or close() the run, or choose another --out",
    )
    with ExitStack() as lock:
        try:
            out.mkdir(parents=True, exist_ok=True)
            lock.enter_context(files.exclusive(folder.lock, refusal=held))
        except OSError as error:
            raise FailureError(f"cannot write to {out}: {error.strerror}") from error
        try:
            run = OpenRun(of)
            run.begin()
        except BaseException:
            if made and not folder.resume.exists():
                shutil.rmtree(out)
            raise
        run.lock = lock.pop_all()
        return run


class OpenRun:
    """A run folder that this process holds, with its ledger, until `close`; `open_run` makes it.

    Guarantee: while it is open nobody else trains in this folder or in a copy of it; the store has
    been charged with the whole plan before `begin` returns.

    Attributes:
        run_id: random.
        folder: of the run.
        ledger: the run's.
        store: the ledger of the store's people.
        steered: a loop of somebody's own takes the steps, and nobody has recorded its constants
            (the learning rate, say).
        record: of the run's ledger before this opening; None where it has not begun.
        kept: what the folder keeps for resuming the run.
    """

    ledger: RunLedger

    def __init__(self, of: Training) -> None:
        self.of, self.folder, self.lock = of, RunFolder(of.out), ExitStack()
        self.plan = of.plan if isinstance(of.plan, Plan) else None
        self.people, self.store = of.store, StoreLedger(of.store.path)
        plan, learning = self.plan, (of.train or {}).get("learning")
        self.constants = constants_digest(plan, learning, of.store, scores=of.options.scores)
        self.steered = plan is not None and of.train is None
        self._written: Lineage | None = None
        self.digests = {
            **of.identity,
            "store": of.store.meta.content_sha256,
            "plan": plan.digest if plan else "none",
            "slot that pays": of.slot or "none",
        }
        self.record = RunRecord.find(of.out)
        self.kept = self._resumable() if of.options.resume else self._unused()
        self.run_id = self.kept.run_id

    def begin(self) -> None:
        """Write everything, in order."""
        folder, kept, record = self.folder, self.kept, self.record
        files.sweep(folder.path)
        remember(self.people.path, folder.path)
        begun = self.run_id in self.store.history().openings
        counter = self.store.counter(self.run_id, begun=begun)
        try:
            self._require_nobody_erased()
            history = self.store.history()  # no other process opens this run from here on
            opening = self._opening(history, counted=counter.attempts)
            lines = (*self.charges_of_plan(history), opening)
            # Asked before anything is written here: what a copy holds must stay what it was, and a
            # folder whose charge is refused too.
            follow(history, lines)
            if self.plan is not None and not self.of.options.resume:
                self.plan.save(folder.plan)
            if self.of.train is not None and not self.of.options.resume:
                files.write_file(folder.train, train_toml(self.of.train).encode())
            resume = replace(
                kept,
                opening=opening,
                store_path=str(self.people.path.resolve()),
                store_beside=os.path.relpath(self.people.path, folder.path),
                state=self.people.meta.state.id,
                digests=self.digests,
            )
            files.write_json(folder.resume, encode(resume), mode=files.OPERATOR_FILE)
            self.store.append(*lines)
            # After the charge: steps of which the store knows no charge are refused by everybody.
            counter.count(opening.attempts - counter.attempts)
            self.ledger = RunLedger(folder.ledger) if record else self._begin_ledger()
            self.ledger.open(opening, counter)
        except BaseException:
            counter.close()
            raise

    def _opening(self, history: History, *, counted: int) -> Open:
        """The line of this opening, with the nonce by which this folder was opened last.

        The store's ledger refuses an opening that names another nonce than its own last one.

        Args:
            history: of the store's ledger.
            counted: the run's attempts so far, over all folders.
        """
        record, kept, last = self.record, self.kept.opening, history.openings.get(self.run_id)
        openings, attempts = (record.of(Open), record.attempts) if record else ([], 0)
        after = openings[-1].nonce if openings else ""
        most = attempts + 1  # a kill loses one step at most
        # After a kill the folder keeps an opening that the run's ledger does not hold.
        keeps = [kept.nonce, kept.after] if kept else []
        if last is not None and last.nonce in keeps and after not in (last.nonce, keeps[0]):
            after, most = last.nonce, last.attempts  # it has taken no step
        if counted > most:
            after = "none: the run's ledger was put back to an earlier state"
        return Open(
            run_id=self.run_id,
            attempts=max(attempts, counted),
            nonce=new_id(),
            after=after,
            copied=history.copied,
        )

    def _begin_ledger(self) -> RunLedger:
        """The run's ledger, with its first line."""
        of, history, meta = self.of, self.store.history(), self.people.meta
        assert of.base is not None
        origin = of.base + inherited(history, self.run_id)
        own = history.charges.get(self.run_id)
        if own is not None and own.base:  # what was known before a kill stays known
            origin += lineage_from(own.base, what=f"the base of {self.run_id}")
        facts = {
            **of.facts,
            "userdp": __version__,
            "store": meta.store_id,
            "seq_len": meta.seq_len,
            "store_facts": store_facts(self.people),
        }
        begin = Begin(
            run_id=self.run_id,
            plan=self.plan,
            facts=facts,
            lineage=origin.plain,
            tuning_id=None if of.slot else history.tuning_of(self.constants),
            payer=self._payer(history),
        )
        return RunLedger.create(self.folder.ledger, begin)

    def _payer(self, history: History) -> Part | None:
        """What the run claims in place of its own steps, if it does."""
        if self.plan is None:
            return None
        why = ""
        if self.of.options.unsafe_seeds:
            why = "its randomness was fixed by a known seed, which anybody could repeat"
        elif self.of.slot is not None:
            why = "it is a trial of a private selection, of which only the winner claims anything"
        if why:
            return Unclaimed(id=self.run_id, why=why)
        return payer_of(history, of_run(self.run_id, self.plan)) if history.budget else None

    def charges_of_plan(self, history: History) -> tuple[Line, ...]:
        """The line that charges the whole plan in the store's ledger; none where that was done."""
        of, run_id = self.of, self.run_id
        assert of.base is not None
        base = of.base.plain
        if of.slot is not None and self.plan is not None:
            return (Trial(run_id=run_id, slot=of.slot, constants=self.constants, base=base),)
        if run_id in history.charges:
            return ()
        # Whoever knows the seed can undo the noise: such a run counts as one without privacy.
        priced = None if of.options.unsafe_seeds else self.plan
        if priced is not None and priced.sampling.covered:
            warn(without_epsilon(priced))
        line = Charge(
            pays_for=of_run(run_id, priced),
            base=base,
            constants=self.constants,
            logged=of.options.exact_log,
            steered=self.steered,
            state=self.people.meta.state.id,
        )
        return (line,)

    def _unused(self) -> Resume:
        """The record of a new run; `UseError` unless one may begin in the folder.

        It may hold what a run left that was killed before it was charged.
        """
        folder = self.folder
        if folder.begun:
            raise UseError(
                f"there is a run at {folder.path} already",
                hint="go on with it with --resume, or choose another --out",
            )
        ours = {folder.lock, folder.plan, folder.train}
        ours |= {*folder.path.glob("*_results.json")}  # of a trainer that evaluated first
        held = set(folder.path.glob("*")) - ours
        if any(not one.name.startswith(files.TEMPORARY) for one in held):
            raise UseError(
                f"{folder.path} is not empty and holds no run: nothing of it is overwritten",
                hint="choose another --out",
            )
        return Resume(run_id=new_id(), began=self.of.began)

    def _resumable(self) -> Resume:
        """The record that an interrupted run left to go on by; `UseError` unless it is this run."""
        folder = self.folder
        if not folder.resume.exists():
            raise UseError(f"there is no interrupted run at {folder.path}", hint="begin a new one")
        kept = folder.read_resume()
        if self.record is not None and self.record.finish is not None:
            # A kill may have come between the last line of the run and the store's.
            settle_finished(folder, self.store)
            raise UseError(
                f"the run at {folder.path} is finished: its steps are spent",
                hint="train again in another --out, with a plan and a budget of its own",
            )
        # For everybody who is still in the store, the steps to come are those of the plan.
        only_erased = self.people.meta.only_erased_since(kept.state)
        for name, value in self.digests.items():
            if kept.digests.get(name, "none") != value and not (name == "store" and only_erased):
                raise UseError(
                    f"the {name} is not the one that the run at {folder.path} began with",
                    hint=f"resume with the {name} it began with, or begin a new run",
                )
        return kept

    def _require_nobody_erased(self) -> None:
        """`UseError` if somebody was erased from the store since it was opened to train on.

        Asked once the charge's counter is locked: from then on an erasure finds that the run is
        open.
        """
        later = read_meta(self.people.path).states[len(self.people.meta.states) :]
        if StateKind.ERASED in {state.kind for state in later}:
            raise UseError(
                f"the store at {self.people.path} lost somebody while the run was opened",
                hint="begin again, without the text of who was erased",
            )

    @property
    def lineage(self) -> Lineage:
        """The lineage of the model that this run releases, the run itself included."""
        return self._own_lineage + self.steering

    def lineage_to_write(self) -> Lineage:
        """`lineage`, for the files of the model; the line of the run's end will say the same. What
        is charged or looked at while they are written has steered nothing.
        """
        self._written = Lineage() if is_finished(self.folder.path) else self.steering
        return self._own_lineage + self._written

    @property
    def steering(self) -> Lineage:
        """What may have steered the run since it was charged.

        Whoever takes the steps in a loop of their own may choose by it what nobody recorded: the
        next learning rate, what becomes of the noisy sums, or the weights that the run goes on
        from. Of every run it is told whether the store's ledger is a copy.
        """
        history = self.store.history()
        if self.steered and self.run_id in history.at:
            ended, _ = history.settled.get(self.run_id, (None, None))
            return lineage_between(history, after=history.at[self.run_id], before=ended)
        return Lineage(conditions=(COPIED,) if history.copied else ())

    @property
    def logged(self) -> bool:
        """Whether the run keeps exact numbers, as its charge says."""
        charge = self.store.history().charges.get(self.run_id)
        return charge is None or charge.logged

    def released_elsewhere(self, weights: Collection[str]) -> bool:
        """Whether weights of such a digest hold what another run over these people has learned.

        Weights in this run's own lineage, such as its base model's, do not count.
        """
        told = {part.id for part in self._own_lineage.parts}
        known = known_of(self.store.history(), weights)
        return known is not None and any(part.id not in told for part in known.parts)

    @property
    def _own_lineage(self) -> Lineage:
        return run_lineage(RunRecord.read(self.ledger.path))

    def finish(self, weights: str | None = None) -> None:
        """Note the end in the ledger and settle with the store.

        Args:
            weights: the digest of the weights that were released, if they are known here.
        """
        folder, since = self.folder, self._written or self.steering
        adapter = digest_of(folder.adapter) if folder.adapter.is_dir() else None
        self.ledger.append(
            Finish(
                attempts=self.ledger.attempts,
                weights=tuple(one for one in dict.fromkeys((adapter, weights)) if one),
                files=bound_files(folder),
                since=since.plain if since != Lineage() else None,
            )
        )
        if not settle_finished(folder, self.store):
            raise UseError(
                f"the ledger of the store at {self.store.path} knows this run no more: it was put "
                "back to an earlier state, and would claim too little",
                hint="put the latest ledger of the store back, and resume the run",
            )

    def close(self) -> None:
        """Let go of the folder; twice does no harm."""
        self.ledger.close()
        self.lock.close()


def settle_finished(folder: RunFolder, store: StoreLedger) -> bool:
    """Settle a run that has ended by its own ledger, in the store's ledger.

    Until then the store counts the run as open, and does not know its weights by their digest.

    Args:
        folder: of a run.
        store: the ledger of a store.

    Returns:
        Whether this settled it. False, and nothing is written, for a run that is not finished, is
        settled already, or was charged elsewhere.
    """
    run = RunRecord.find(folder.path)
    if run is None or run.finish is None:
        return False
    run_id, history = run.run_id, store.history()
    if run_id in history.settled or run_id not in {*history.charges, *history.trials}:
        return False
    lineage = run_lineage(run).plain
    store.append(
        *(Release(run_id=run_id, weights=one, lineage=lineage) for one in run.finish.weights),
        Settle(run_id=run_id),  # last: what a kill leaves undone is done again
    )
    return True


def store_facts(store: UserStore) -> dict[str, Any]:
    """Facts about the preparation of a store that a report must state.

    Guarantee (invariant 9): nothing here depends on the records. The assumption about owners is
    stated for every kind of source whose records *may* have several owners. Whether a record has
    several is itself a fact about people's records.

    Args:
        store: that is trained on.

    Returns:
        ``user_is``: the field that named the user of a record, in words; and ``owners`` (the
        assumption, in words), if records may have several.
    """
    facts: dict[str, Any] = {}
    sources, rule = store.meta.sources, store.meta.ownership
    if user_is := dict.fromkeys(words for one in sources if (words := one.get("user_is"))):
        facts["user_is"] = "; ".join(user_is)
    if rule["rule"] != "greedy" and any(one.get("may_name_several") for one in sources):
        facts["owners"] = FIRST_OWNER["assumption"]
    return facts
