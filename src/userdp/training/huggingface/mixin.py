"""`UserLevelMixin`: a `transformers.Trainer` whose gradient is that of private steps.

The trainer's loop stays as it is. In place of data it gets tickets (`tickets`), one for each
private step; `training_step` takes the next step of the run, which fills ``.grad`` with the noisy
gradient, and tells the loop a loss of zero; the optimizer, the schedule, the callbacks, the logs
and the checkpoints follow as ever. What the trainer could do besides that would break the guarantee
is in `refusals`; what it may log in `logs`.

The output folder is the run's folder (`userdp.ledger.folder`)::

    OUTPUT_DIR/
      ledger.jsonl, plan.json   the run's; userdp.claim(OUTPUT_DIR) reads them
      model/ or adapter/        what was released, after the last step
      checkpoint-N/             0700: see `checkpoints`
      operator.jsonl            0600: the exact loss and norms of each step
      runs/                     0700: TensorBoard's; only what `logs` allows, and when
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import EarlyStoppingCallback, Trainer
from transformers.trainer_utils import TrainOutput

from userdp import files, interrupts
from userdp.claims.claims import Claim, claim
from userdp.claims.conditions import Condition, ConditionKind
from userdp.claims.lineage import Lineage
from userdp.data.records import Drop
from userdp.data.sources import memory
from userdp.data.store import UserStore
from userdp.errors import FailureError, UseError, warn
from userdp.gradients import Loss, causal_lm_loss
from userdp.ledger import RunFolder, StoreLedger
from userdp.ledger.journal import read_entries
from userdp.ledger.run import count_attempts
from userdp.planning.proposal import Proposal, as_plan, declared_users
from userdp.plans import Plan
from userdp.plans.small_delta import plan_with_small_delta
from userdp.training.config import PrivateOptions, UnsafeSeeds
from userdp.training.huggingface.checkpoints import last_sealed, require_own, rotate, seal
from userdp.training.huggingface.dataset import default_seq_len, store_of
from userdp.training.huggingface.guards import (
    require_plain,
    require_plain_accelerator,
    require_unwatched,
)
from userdp.training.huggingface.logs import close_curves, public_logs
from userdp.training.huggingface.looks import Looks
from userdp.training.huggingface.refusals import (
    EVALUATION,
    require_unchanged,
    required_args,
    steps_per_epoch,
)
from userdp.training.huggingface.release import copy_released, describe_saved, release
from userdp.training.huggingface.stopping import StopWhenAsked
from userdp.training.huggingface.tickets import tickets
from userdp.training.origin import digest_of_weights, lineage_of_weights
from userdp.training.private import open_private
from userdp.training.private_run import PrivateRun
from userdp.training.runs import TrainerNotes
from userdp.training.steps import Step

_SECRET = UnsafeSeeds()


class UserLevelMixin(Looks):
    """Trains with user-level privacy; put it before a class that descends from `Trainer`.

    Guarantee: the weights, the checkpoints and the logs satisfy the plan's guarantee (the claim of
    the run adds what its base model and its constants descend from), as long as callbacks and
    overridden methods read the training data in no other way. Exact numbers are in
    ``operator.jsonl`` and in what `evaluate` and `predict` return, and nowhere else.

    A run that was interrupted goes on with ``train(resume_from_checkpoint=True)``: the steps that
    its ledger does not hold yet. Attempts whose update was lost stay charged, and ``global_step``
    counts them.

    Args:
        model: of Hugging Face's; what of it requires a gradient is trained.
        args: `transformers.TrainingArguments`; a copy is kept, see `refusals`.
        train_dataset: see `userdp.training.huggingface.dataset`; None for the store as it is.
        plan: sampling, clip, noise and steps; see `userdp.make_private`.
        store: the user store of these people, or where it lies or shall be prepared. Its ledger
            adds up what all runs cost, so every script over the same people names the same one.
        user_column: the column that names a row's user.
        text_column: the column of the text, of a data set without ``input_ids``.
        seq_len: most tokens of an example; by default 1024, or less if the model reads less.
        loss: per-row loss, see `userdp.make_private`.
        engine: see `userdp.PrivateOptions`.
        selection: see `userdp.PrivateOptions`.
        base: what the weights descend from, where that cannot be looked up.
        public_eval: the evaluation data is nobody's private text: it may be evaluated on during
            training, and its numbers may be logged and may choose a checkpoint.
        allow_large_delta: see `userdp.PrivateOptions`.
        unsafe_seeds: FOR TESTS ONLY.
        trainer_options: all other arguments of the trainer.

    Raises:
        UseError: an option is refused, or the data set or the store does not fit. Nothing was
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
        engine: str = "auto",
        selection: str = "random",
        base: Lineage | None = None,
        public_eval: bool = False,
        allow_large_delta: bool = False,
        unsafe_seeds: UnsafeSeeds = _SECRET,
        **trainer_options: Any,
    ) -> None:
        self._plan, self._users = as_plan(plan), declared_users(plan)
        self._public_eval = public_eval
        self._private: PrivateRun | None = None
        self._steps: Iterator[Step] | None = None
        self._resumes = False
        self._checkpoint: Path | None = None
        self._taken = 0  # steps in this process
        self._released = False
        self._epsilon: dict[str, float] = {}
        self._options: dict[str, Any] = {
            "engine": engine,
            "selection": selection,
            "allow_large_delta": allow_large_delta,
            "unsafe_seeds": unsafe_seeds,
        }
        self._loss, self._given_base = loss, base
        if args is None:
            raise UseError("the trainer has no args", hint="give TrainingArguments(OUTPUT_DIR)")
        require_plain(type(self), trainer_options)
        args = required_args(args, self._plan, public_eval=public_eval)
        if memory.is_transformed(train_dataset):
            raise UseError(
                "the data set has a transform (set_transform, with_transform), and a store keeps "
                "the rows as they are: what the transform takes out of them would be trained on",
                hint="apply it: dataset.with_format(None).map(transform, batched=True)",
            )
        train_dataset, lost = self._readable(train_dataset, args, trainer_options)
        super().__init__(model=model, args=args, train_dataset=train_dataset, **trainer_options)
        require_plain_accelerator(self.accelerator)
        prepared: Any = self.train_dataset  # by the trainer: TRL tokenizes
        self._store = store_of(
            prepared,
            store,
            processing_class=self.processing_class,
            user_column=user_column,
            text_column=text_column,
            seq_len=default_seq_len(self.model, seq_len),
            lost=lost,
        )
        # From here on the private run is the one reader of people's text.
        self.train_dataset: Any = None

    def _readable(
        self, dataset: Any, args: Any, options: Mapping[str, Any]
    ) -> tuple[Any, Mapping[Drop, int]]:
        """The rows that the trainer's own preparation can read, and how many others there were."""
        return dataset, {}

    @property
    def claim(self) -> Claim:
        """The claim of the run in the output folder; `UseError` before training has begun."""
        return claim(Path(self.args.output_dir))

    @property
    def store(self) -> UserStore:
        """The user store that is trained on."""
        return self._store

    # The loop: where the private run opens, steps and ends.

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> TrainOutput:
        """Take the plan's steps, or those that remain, and release the model.

        Args:
            resume_from_checkpoint: True goes on with the run in the output folder, from its last
                whole checkpoint (from the base model's weights, if it was killed before the first);
                a path names one of its checkpoints.
            trial: refused, see `hyperparameter_search`.
            ignore_keys_for_eval: as in `transformers.Trainer`.

        Returns:
            The attempts charged, and the claim's ε and δ. The loss is NaN: the exact one is the
            operator's.

        Raises:
            UseError, FailureError: as `userdp.make_private`; or a callback is refused.
            Interrupted: by Ctrl-C or SIGTERM, after a step that is in a checkpoint, whatever
                ``save_strategy`` says.
        """
        if trial is not None:
            self.hyperparameter_search()
        require_unchanged(self.args, self._plan, public_eval=self._public_eval)
        self._require_callbacks()
        folder = RunFolder(Path(self.args.output_dir))
        self._resumes = bool(resume_from_checkpoint)
        if self._resumes and not folder.begun:
            raise UseError(
                f"there is no private run in {folder.path} to resume",
                hint="leave resume_from_checkpoint out",
            )
        self._checkpoint, self._taken = None, 0
        if isinstance(resume_from_checkpoint, str | os.PathLike):
            self._checkpoint = Path(resume_from_checkpoint)
        elif self._resumes:
            self._checkpoint = last_sealed(folder.path)
        if self._checkpoint is not None:
            require_own(
                self._checkpoint,
                run_id=folder.run_id,
                attempts=count_attempts(read_entries(folder.ledger)),
            )
        with interrupts.held() as signals:
            stop = StopWhenAsked(signals)
            self.add_callback(stop)
            try:
                super().train(
                    resume_from_checkpoint=(
                        None if self._checkpoint is None else str(self._checkpoint)
                    ),
                    ignore_keys_for_eval=ignore_keys_for_eval,
                )
                run = self._run
                if run.remaining:
                    signals.check(f"after step {run.done} of {self._plan.steps}", resume=True)
                else:
                    self._require_trained()
                    release(run, self.processing_class)
                    self._released = True
                    signals.finished()
            finally:
                self.remove_callback(stop)
                if self._private is not None:
                    close_curves(self.callback_handler.callbacks, folder.path)
                    self._private.close()
                self._private = self._steps = None
        return TrainOutput(self.state.global_step, float("nan"), dict(self._epsilon))

    def _require_trained(self) -> None:
        """`FailureError` where all steps are spent and none of their updates is left."""
        if self._taken or self._checkpoint is not None:
            return
        raise FailureError(
            "every planned step was charged, and the process that took them was killed without a "
            "checkpoint: nothing of what was learned is left to release",
            hint="train again in another output folder, with a plan and a budget of its own, and "
            "with save_steps",
        )

    def get_train_dataloader(self) -> Any:
        """Tickets in place of data; an epoch has the steps that draw everybody once on average."""
        return tickets(steps_per_epoch(self._plan))

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], None]:
        """One ticket, if a step remains: never one ahead, so that none is charged and not taken."""
        if not self._run.remaining:
            return [], None
        samples, _ = super().get_batch_samples(epoch_iterator, 1, device)
        return samples, None

    def training_step(
        self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None
    ) -> Tensor:
        """Take the next private step, which fills ``.grad``; the loss that is told is zero."""
        model.train()
        require_unwatched(model)
        assert self._steps is not None
        step = next(self._steps)
        self._taken += 1
        notes = {"step": step.number, **step.operator, "learning_rate": self._get_learning_rate()}
        self._run.folder.log({"kind": "step", **notes})
        return torch.zeros((), device=self.args.device)

    def floating_point_ops(self, inputs: Any) -> int:
        """0: the true number tells how much the people wrote who were drawn."""
        return 0

    def _init_training_state(self, *arguments: Any) -> tuple[int, int]:
        """Where the loop begins: at the attempts that the ledger holds."""
        super()._init_training_state(*arguments)
        if not self._resumes:
            return 0, 0
        ledger = RunFolder(Path(self.args.output_dir)).ledger
        self.state.global_step = count_attempts(read_entries(ledger)) if ledger.exists() else 0
        epoch, steps = divmod(int(self.state.global_step), steps_per_epoch(self._plan))
        return epoch, steps

    def _prepare_for_training(self, *arguments: Any) -> tuple[Any, Any]:
        """Open the private run, now that the model, the optimizer and the schedule are ready."""
        model, loader = super()._prepare_for_training(*arguments)
        optimizer: Any = self.optimizer  # in a wrapper of accelerate's
        restored = 0
        if self._checkpoint is not None:
            restored = (
                type(self.state)
                .load_from_json(str(self._checkpoint / "trainer_state.json"))
                .global_step
            )
        inner = getattr(optimizer, "optimizer", optimizer)
        if self._resumes and self._checkpoint is None and inner.state:
            raise UseError(
                "the optimizer has a state, and there is no checkpoint that it could be of: the "
                "claim would say nothing of the steps that it was made by",
                hint="make a new trainer, and resume with that",
            )
        options = dict(self._options)
        if not (self._resumes or options["allow_large_delta"]):
            total = StoreLedger(self._store.path).history().total_delta
            warn(plan_with_small_delta(self._plan, users=self._users, total_delta=total))
            options["allow_large_delta"] = True  # judged by the number of users, if there is one
        self._private = open_private(
            self.model,
            inner,
            self._store,
            self._plan,
            out=self.args.output_dir,
            loss=self._loss,
            micro_batch=self.args.per_device_train_batch_size,
            resume=self._resumes,
            options=PrivateOptions(exact_log=True, **options),
            notes=TrainerNotes(
                identity=self._identity(),
                facts={
                    "trainer": f"{type(self).__name__}, transformers {transformers.__version__}"
                },
                base=self._base(),
                log_only=True,  # operator.jsonl has them; callbacks, schedules and logs see none
            ),
        )
        close_curves(self.callback_handler.callbacks, self._private.folder.path)
        self._steps = iter(self._private)
        # A crash between a charge and the next checkpoint loses updates, but not their price.
        self.state.global_step = self._private.done
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a schedule that steps before its optimizer does
            for _ in range(self._private.done - restored):
                self.lr_scheduler.step()
        guarantee = self.claim.guarantee
        self._epsilon = {"epsilon": guarantee.epsilon, "delta": guarantee.delta}
        return model, loader

    @property
    def _run(self) -> PrivateRun:
        assert self._private is not None, "the private run opens with the trainer's loop"
        return self._private

    def _identity(self) -> dict[str, str]:
        """What a resumed run must share besides: without a checkpoint, the weights as they are now.

        What trains is in the checkpoint, which is known by its run and its bytes.
        """
        return {} if self._checkpoint is not None else {"base model": digest_of_weights(self.model)}

    def _lineage_of_base(self) -> Lineage | None:
        """What the weights descend from, where this class knows more than `make_private` can."""
        return self._given_base

    def _base(self) -> Lineage | None:
        """The same, with what was declared of the evaluation data."""
        known = self._lineage_of_base()
        if not self._public_eval:
            return known
        known = lineage_of_weights(self.model, self._store) if known is None else known
        declared = Condition(kind=ConditionKind.EVALUATION, told="eval_dataset")
        return known + Lineage(conditions=(declared,))

    # What is written and told.

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log what may be seen of ``logs``, and the claim's ε; see `logs` beside this file."""
        public = public_logs({**logs, **self._epsilon}, public_eval=self._public_eval)
        # Not super(): TRL's own `log` would add its exact numbers behind the allow-list.
        Trainer.log(self, public)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Write what the run released: those weights, whatever the model has learned since.

        Raises:
            UseError: the run is not finished.
        """
        place = Path(self.args.output_dir if output_dir is None else output_dir)
        if _internal_call:
            super().save_model(str(place), _internal_call=True)
            describe_saved(place, self._run.lineage)
            return
        if not self._released:
            raise UseError(
                "planned steps remain: the model is released when the last of them is done, and a "
                "run that stops early stays charged in full",
                hint="go on with trainer.train(resume_from_checkpoint=True); checkpoints are saved "
                "by save_steps",
            )
        copy_released(RunFolder(Path(self.args.output_dir)), place)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        output = Path(self.args.output_dir)
        folder = output / f"checkpoint-{self.state.global_step}"
        files.operator_folder(folder)
        # Old ones go when the new one is whole, and not before.
        limit, self.args.save_total_limit = self.args.save_total_limit, None
        try:
            super()._save_checkpoint(model, trial)
        finally:
            self.args.save_total_limit = limit
        seal(folder, run_id=self._run.folder.run_id, attempts=self._run.done)
        rotate(output, limit=limit, keep=self.state.best_model_checkpoint)

    # What is refused whenever it is called.

    def hyperparameter_search(self, *arguments: Any, **options: Any) -> Any:
        """Refused: each trial is a run with a price of its own, and the choice another."""
        raise UseError(
            "a hyperparameter search trains many models on the same people and keeps the best: "
            "each has a price, and the choice has one",
            hint="use userdp sweep, which pays for all of it with one private selection",
        )

    def push_to_hub(self, *arguments: Any, **options: Any) -> Any:
        """Refused: it uploads the output folder, the operator's files included."""
        raise UseError(
            "push_to_hub uploads the output folder, in which checkpoints and the operator's files "
            "lie too",
            hint="upload OUTPUT_DIR/model: huggingface_hub.upload_folder(folder_path=…)",
        )

    def _require_callbacks(self) -> None:
        for callback in self.callback_handler.callbacks:
            if isinstance(callback, EarlyStoppingCallback) and not self._public_eval:
                raise UseError(
                    f"EarlyStoppingCallback is refused here: {EVALUATION.why}",
                    hint=EVALUATION.instead,
                )
