"""`UserLevelMixin`: a `transformers.Trainer` whose gradient is that of private steps.

The trainer's loop stays as it is. In place of data it gets the numbers of private steps;
`training_step` takes the next step of the run, which fills ``.grad`` with the noisy gradient, and
returns a loss of zero to the loop; the optimizer, the schedule, the callbacks, the logs and the
checkpoints follow as ever. Settings that would break the guarantee are in `trainer_settings`.

The output folder is the run's folder (`userdp.ledger.run_folder`)::

    OUTPUT_DIR/
      ledger.jsonl, plan.json   the run's; userdp.claim(OUTPUT_DIR) reads them
      model/ or adapter/        what was released, after the last step
      checkpoint-N/             0700: see below
      operator.jsonl            0600: the exact loss and norms of each step
      runs/                     0700: TensorBoard's, which notes the time of each number

**Checkpoints.** The trainer writes a checkpoint file by file and ``trainer_state.json`` last, so
that a process that is killed meanwhile leaves half a checkpoint. Among the states of the trainer's
callbacks that file holds our seal: the run, and the digest of the weights, since other scripts
write to the same names. A run goes on only from its own sealed checkpoints: from others it would
release what somebody else's steps have learned.

A checkpoint (weights, optimizer, schedule) is computed from noisy gradients, so the run's claim
covers it. It holds no secret: a resumed run draws new cohorts, noise and masks. It is operator-only
(mode 0700), since a choice among checkpoints should not follow private results.
"""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
import transformers
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainerState
from transformers.trainer_utils import TrainOutput, sort_checkpoints

from userdp.claims import Claim, claim
from userdp.claims.lineage import Condition, ConditionKind, Lineage
from userdp.claims.weights import describe, digest_of
from userdp.core import files, interrupts
from userdp.core.errors import FailureError, Interrupted, UseError, warn
from userdp.core.interrupts import Held
from userdp.data.user_store import UserStore
from userdp.gradients import Loss, causal_lm_loss
from userdp.ledger import RunFolder, RunRecord, StoreLedger
from userdp.ledger.run_ledger import is_finished
from userdp.plans import Plan
from userdp.plans.proposal import Proposal, as_plan, declared_users
from userdp.training.causal_models import context_of
from userdp.training.config import PrivateOptions
from userdp.training.huggingface.dataset import LONGEST, store_of
from userdp.training.huggingface.trainer_settings import EVALUATION, PUSH, private_args
from userdp.training.model_origin import digests_of, lineage_of_model
from userdp.training.open_run import Training
from userdp.training.private_run import PrivateRun
from userdp.training.step_mechanism import Step

LOGGED = {"learning_rate", "epoch", "grad_norm", "epsilon", "delta"}
"""The names that a trainer may log: public constants, the claim, the norm of the noisy gradient.

Logs go to the console, to trainer_state.json and to trackers, and others may see all of these. The
list names what passes, so that a number which a later trainer adds stays inside.
"""

_USUAL = PrivateOptions()
_SEAL = "userdp"


class UserLevelMixin(Trainer):  # type: ignore[misc]  # transformers leaves its classes untyped
    """Trains with user-level privacy; put it before a class that descends from `Trainer`.

    Guarantee: the weights, the checkpoints and the logs satisfy the plan's guarantee (the claim of
    the run adds what its base model and its constants descend from), as long as callbacks and
    overridden methods read the training data in no other way. Exact numbers are in
    ``operator.jsonl`` and in what `evaluate` and `predict` return, and nowhere else.

    A run that was interrupted goes on with ``train(resume_from_checkpoint=True)``: the steps that
    its ledger does not hold yet. Attempts whose update was lost stay charged, and ``global_step``
    counts them.

    Args:
        model: of `transformers`, perhaps with adapters; its parameters with ``requires_grad`` are
            trained.
        args: `transformers.TrainingArguments`; a copy is kept, see `trainer_settings`.
        train_dataset: see `userdp.training.huggingface.dataset`; None for the store as it is.
        plan: sampling, clip, noise and steps; see `userdp.make_private`.
        store: the user store of these people, or where it lies or shall be prepared. Its ledger
            adds up what all runs cost, so every script over the same people names the same one.
        user_column: the column that names a row's user.
        text_column: the column of the text, of a data set without ``input_ids``.
        seq_len: most tokens of an example; by default the ``max_length`` of TRL's arguments, or
            1024, or less if the model reads less.
        loss: per-row loss, see `userdp.make_private`.
        public_eval: ``eval_dataset`` is nobody's private text: it may be evaluated on during
            training, and its numbers may be logged and may choose a checkpoint.
        options: see `userdp.make_private`; the exact numbers are always in ``operator.jsonl``, and
            the size of a pass and resuming are said as `transformers` says them.
        trainer_options: all other arguments of the trainer.

    Attributes:
        store: the user store that is trained on.

    Raises:
        UseError: a setting is refused, or the data set or the store does not fit. Nothing has been
            charged then.
    """

    def __init__(
        self,
        model: Any,
        args: Any,
        train_dataset: Any = None,
        *,
        plan: Plan | Proposal | str | os.PathLike[str],
        store: UserStore | str | os.PathLike[str],
        user_column: str = "user",
        text_column: str = "text",
        seq_len: int | None = None,
        loss: Loss = causal_lm_loss,
        public_eval: bool = False,
        options: PrivateOptions = _USUAL,
        **trainer_options: Any,
    ) -> None:
        if options != replace(options, micro_batch=_USUAL.micro_batch, resume=False, dry_run=False):
            raise UseError(
                "a trainer has per_device_train_batch_size in place of micro_batch, and "
                "train(resume_from_checkpoint=True) in place of resume; it has no dry run"
            )
        self._proposal, self._plan = plan, as_plan(plan)
        self._loss, self._options = loss, replace(options, exact_log=True)
        self._private: PrivateRun | None = None
        self._steps: Iterator[Step] = iter(())
        self._resumes = self._shows_evaluation = False
        self._epsilon: dict[str, float] = {}
        self._asked, own_loss = dict(trainer_options), type(self).compute_loss
        if not own_loss.__module__.startswith(("transformers.", "trl.")):
            self._asked["compute_loss"] = own_loss
        args = private_args(args, self._asked, self._plan, public_eval=public_eval)
        super().__init__(model=model, args=args, train_dataset=train_dataset, **trainer_options)
        self._public_data = self.eval_dataset if public_eval else None
        prepared: Any = self.train_dataset  # by the trainer: TRL tokenizes
        longest = min(getattr(args, "max_length", None) or LONGEST, context_of(self.model))
        self.store = store_of(
            prepared,
            store,
            processing_class=self.processing_class,
            user_column=user_column,
            text_column=text_column,
            seq_len=seq_len or longest,
        )
        # From here on only the private run reads people's text.
        self.train_dataset: Any = None

    @property
    def claim(self) -> Claim:
        """The claim of the run in the output folder; `UseError` before training has begun."""
        return claim(Path(self.args.output_dir))

    # The loop: the private run opens, steps and ends here.

    def train(
        self, resume_from_checkpoint: str | os.PathLike[str] | bool | None = None, **options: Any
    ) -> TrainOutput:
        """Take the plan's steps, or those that remain, and release the model.

        Args:
            resume_from_checkpoint: True goes on with the run in the output folder, from its last
                whole checkpoint (from the base model's weights, if it was killed before the first);
                a path names one of its checkpoints.
            options: as in `transformers.Trainer`.

        Returns:
            The attempts charged, and the claim's ε and δ. The loss is NaN: the exact one is the
            operator's.

        Raises:
            UseError, FailureError: as `userdp.make_private`; or a setting was changed to a refused
                value after the trainer was made.
            Interrupted: by Ctrl-C or SIGTERM, after a step that is in a checkpoint, whatever
                ``save_strategy`` says.
        """
        own, plan = self._asked, self._plan
        self.args: Any = private_args(self.args, own, plan, public_eval=self._may_steer)
        folder, asked = RunFolder(Path(self.args.output_dir)), resume_from_checkpoint
        self._resumes = bool(asked)
        checkpoint = Path(asked) if isinstance(asked, str | os.PathLike) else None
        if asked is True:
            checkpoint = last_sealed(folder.path)
        if checkpoint is not None:
            require_own(checkpoint, run_id=RunRecord.read(folder.path).run_id)
        with interrupts.held() as signals:
            stop = StopWhenAsked(signals)
            self.add_callback(stop)
            try:
                super().train(checkpoint and str(checkpoint), **options)
                if self._run.remaining:
                    place = f"after step {self._run.done} of {self._plan.steps}"
                    if signals.heard:
                        raise Interrupted(place, resume="resume_from_checkpoint=True")
                    way = "train(resume_from_checkpoint=True) goes on"
                    warn(f"training ended {place}: nothing is released, and all is charged; {way}")
                else:
                    self._run.save(tokenizer=self.processing_class)
                    signals.heard = False  # nothing is left to stop
            finally:
                self.remove_callback(stop)
                if self._private is not None:
                    self._private.close()
                self._private = None
        return TrainOutput(self.state.global_step, float("nan"), dict(self._epsilon))

    def get_train_dataloader(self) -> Any:
        """Numbers of private steps in place of data.

        An epoch has as many steps as draw every user once on average. The number of users is the
        declared population, so that the length of an epoch tells nothing about the real number.
        """
        steps = max(1, round(self._plan.population / self._plan.denominator))
        return DataLoader([{"private step": number} for number in range(steps)])  # type: ignore[arg-type]

    def get_batch_samples(self, *arguments: Any, **options: Any) -> Any:
        """The next number, if a step remains; none for a run that was killed before its release."""
        if not self._run.remaining:
            return [], None
        return super().get_batch_samples(*arguments, **options)

    def training_step(self, model: nn.Module, inputs: Any, num_items: Any = None) -> Tensor:
        """Take the next private step, which fills ``.grad``; the returned loss is zero."""
        model.train()
        if hasattr(self.optimizer, "train"):  # schedule-free ones have modes, as models have
            self.optimizer.train()
        step = next(self._steps)
        notes = {"step": step.number, **step.operator, "learning_rate": self._get_learning_rate()}
        self._run.folder.log({"kind": "step", **notes})
        return torch.zeros((), device=self.args.device)

    def floating_point_ops(self, inputs: Any) -> int:
        """0: the true number tells how much the drawn users wrote."""
        return 0

    def _prepare_for_training(self, steps: int, loader: Any, checkpoint: str | None) -> Any:
        """Open the private run, now that the model, the optimizer and the schedule are ready."""
        prepared = super()._prepare_for_training(steps, loader, checkpoint)
        # A resumed run must share it; weights from a checkpoint are known by their seal.
        digests = digests_of(self.model)
        identity = {"public evaluation": str(self._public_data is not None)}
        identity |= {"base model": digests.whole} if checkpoint is None else {}
        base = lineage_of_model(self.store, self.model, digests=digests)
        if self._public_data is not None:
            declared = Condition(kind=ConditionKind.EVALUATION, told="eval_dataset")
            base += Lineage(conditions=(declared,))
        batch = self.args.per_device_train_batch_size
        training = Training(
            model=self.model,
            optimizer=cast(Any, self.optimizer).optimizer,  # in a wrapper of accelerate's
            store=self.store,
            plan=self._plan,
            out=Path(self.args.output_dir),
            loss=self._loss,
            options=replace(self._options, micro_batch=batch, resume=self._resumes),
            identity=identity,
            facts={"trainer": f"{type(self).__name__}, transformers {transformers.__version__}"},
            base=base,
            log_only=True,  # exact numbers go to operator.jsonl, and to no callback or schedule
        )
        run = PrivateRun(training, users=declared_users(self._proposal))
        self._private = run.open()
        run.require_checkpoint(checkpoint)
        files.operator_folder(run.folder.path / "runs")
        self._steps = iter(run)
        # A crash between a charge and the next checkpoint loses updates, but not their price.
        lost, self.state.global_step = run.done - self.state.global_step, run.done
        if lost:
            warn(f"the updates of {lost} charged steps are lost: no checkpoint holds them")
        if type(self.lr_scheduler).__name__ not in ("ReduceLROnPlateau", "GreedyLR"):  # of a metric
            with warnings.catch_warnings(action="ignore"):  # that the optimizer has not stepped
                for _ in range(lost):
                    self.lr_scheduler.step()
        guarantee = self.claim.guarantee
        self._epsilon = {"epsilon": guarantee.epsilon, "delta": guarantee.delta}
        return prepared

    @property
    def _run(self) -> PrivateRun:
        assert self._private is not None, "the private run opens with the trainer's loop"
        return self._private

    # Logs, files and evaluations.

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log what may be seen of ``logs`` (`LOGGED`), and the claim's ε."""
        public = {
            name: value
            for name, value in {**logs, **self._epsilon}.items()
            if name in LOGGED or (self._shows_evaluation and name.startswith("eval_"))
        }
        # Not super(): TRL's own `log` would add its exact numbers behind the allow-list.
        Trainer.log(self, public)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Copy the weights that the run released, whatever the model has learned since.

        Raises:
            UseError: the run is not finished.
        """
        folder = RunFolder(Path(self.args.output_dir))
        place = folder.path if output_dir is None else Path(output_dir)
        if _internal_call:  # into a checkpoint
            files.operator_folder(place)
            super().save_model(str(place), _internal_call=True)
            weights = describe(place, self._run.lineage)
            # The trainer writes this state when all else of the checkpoint is written.
            run_id = RunRecord.read(folder.path).run_id
            self.state.stateful_callbacks[_SEAL] = {"run_id": run_id, "weights": weights}
        elif is_finished(folder.path):
            released = folder.adapter if folder.adapter.is_dir() else folder.model
            if place not in (folder.model, folder.adapter):  # which are there as they were released
                shutil.copytree(released, place, dirs_exist_ok=True)
        else:
            raise UseError(
                "planned steps remain: the model is released when the last of them is done",
                hint="go on with trainer.train(resume_from_checkpoint=True)",
            )

    def push_to_hub(self, *arguments: Any, **options: Any) -> Any:
        """Refused: it uploads the output folder, the operator's files included."""
        raise PUSH.refusal("push_to_hub")

    @property
    def _may_steer(self) -> bool:
        """Whether the ``eval_dataset`` is the one that was declared public."""
        return self._public_data is not None and self._public_data is self.eval_dataset

    def evaluate(self, eval_dataset: Any = None, *arguments: Any, **options: Any) -> Any:
        """As in `transformers.Trainer`; notes whether it reads what was declared public.

        By a name it reads one of the data sets of `eval_dataset`.
        """
        own = eval_dataset is None or isinstance(eval_dataset, str)
        self._shows_evaluation = self._may_steer and (own or eval_dataset is self.eval_dataset)
        try:
            return super().evaluate(eval_dataset, *arguments, **options)
        finally:
            self._shows_evaluation = False

    def evaluation_loop(self, *arguments: Any, **options: Any) -> Any:
        """As in `transformers.Trainer`; on private text it is a look, which the ledger notes.

        `evaluate` and `predict` return exact numbers, for the operator: constants of later runs may
        have been chosen by them. An evaluation on the ``eval_dataset`` that was declared public is
        no look.

        Raises:
            UseError: the text is private, and steps remain that its numbers could steer.
        """
        if not self._shows_evaluation:
            if self._private is not None:
                raise EVALUATION.refusal("evaluation during training")
            StoreLedger(self.store.path).look("evaluate")
        return super().evaluation_loop(*arguments, **options)

    def save_metrics(self, split: str, metrics: dict[str, float], combined: bool = True) -> None:
        """As in `transformers.Trainer`; the files are the operator's (mode 0600)."""
        super().save_metrics(split, metrics, combined=combined)
        for path in Path(self.args.output_dir).glob("*_results.json"):
            path.chmod(files.OPERATOR_FILE)


class UserLevelTrainer(UserLevelMixin):
    """`transformers.Trainer` with user-level privacy; see `UserLevelMixin` for the arguments.

    ::

        trainer = UserLevelTrainer(
            model, args, train_dataset=dataset, processing_class=tokenizer,
            user_column="author", plan=plan, store="people",
        )
        trainer.train()
        print(trainer.claim.headline)
    """


def sealed(folder: Path) -> dict[str, Any] | None:
    """The seal of a checkpoint; None if it is half written, or no private run wrote it."""
    try:
        state = TrainerState.load_from_json(str(folder / "trainer_state.json"))
    except (OSError, ValueError):
        return None
    return cast("dict[str, Any] | None", state.stateful_callbacks.get(_SEAL))


def last_sealed(output: Path) -> Path | None:
    """The last checkpoint that is whole, by attempts."""
    paths = map(Path, reversed(sort_checkpoints(str(output))))
    return next((path for path in paths if sealed(path) is not None), None)


def require_own(folder: Path, *, run_id: str) -> None:
    """`FailureError` unless the run ``run_id`` wrote the whole checkpoint, and it is unchanged."""
    seal = sealed(folder)
    if seal is None or seal != {"run_id": run_id, "weights": digest_of(folder)}:
        raise FailureError(
            f"{folder} is not whole, or not what this run wrote: its weights may be another's",
            hint="put its own back, or say resume_from_checkpoint=True for the last whole one",
        )


class StopWhenAsked(TrainerCallback):  # type: ignore[misc]  # transformers has no types
    """On Ctrl-C or SIGTERM have the loop save a checkpoint, and stop after the step.

    Args:
        signals: that are held back.
    """

    def __init__(self, signals: Held) -> None:
        self._signals = signals

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """After the optimizer's step: what was charged is applied."""
        # A disk that is too small must not be found after the last step, when all are charged.
        # Nor may what the last steps taught be lost if the release fails.
        control.should_save |= state.global_step in (1, state.max_steps)
        if self._signals.heard:
            control.should_save = control.should_training_stop = True
