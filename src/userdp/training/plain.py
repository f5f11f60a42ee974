"""Training without privacy: shuffled batches and the mean loss per target token. No ε is claimed.

For pre-training on public text, and as what private training is compared with.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from torch import nn

from userdp.data.splits import Split
from userdp.data.store import StoreSplit, UserStore
from userdp.errors import UseError
from userdp.gradients import (
    Loss,
    Units,
    causal_lm_loss,
    require_masked,
    row_losses,
    trainable_parameters,
)
from userdp.ledger import RunFolder
from userdp.training.config import PlainPlan
from userdp.training.optimizer_checks import require_same_parameters
from userdp.training.runs import OpenRun, open_run
from userdp.training.steps import Step, finite_or_none


def make_plain(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    store: UserStore,
    plan: PlainPlan,
    *,
    out: Path,
    seed: int,
    loss: Loss = causal_lm_loss,
    micro_batch: int = 32,
    resume: bool = False,
    identity: Mapping[str, str] | None = None,
    public: Mapping[str, Any] | None = None,
    train: Mapping[str, Any] | None = None,
) -> PlainRun:
    """Open a run without privacy; the store's claim becomes infinite from here on.

    Args:
        model: its parameters with ``requires_grad`` are trained.
        optimizer: over exactly those parameters.
        store: whose training split is read.
        plan: steps and batch size.
        out: the run's folder; new, unless ``resume``.
        seed: of the order of the examples.
        loss: mean per row over its own targets.
        micro_batch: most rows in one pass.
        resume: go on with the interrupted run in ``out``.
        identity: digests of what a resumed run must share.
        public: public constants to note in the ledger's first line.
        train: options of ``userdp train`` to note in train.toml.
    """
    require_same_parameters(model, optimizer)
    if store.meta.loss_mask:
        require_masked(loss)
    split = store.split(Split.TRAIN)
    if not len(split.counts):
        raise UseError("the store has no training users")
    run = open_run(
        out,
        store,
        None,
        identity={
            "training length": f"{plan.steps} steps of {plan.batch_size}",
            **(identity or {}),
        },
        public=public or {},
        train=None if train is None else {**plan.options, **train},
        resume=resume,
    )
    return PlainRun(
        run,
        model=model,
        split=split,
        plan=plan,
        seed=seed,
        loss=loss,
        micro_batch=micro_batch,
    )


class PlainRun:
    """The steps of a run without privacy that remain; made by `make_plain`.

    Attributes:
        done: steps that the model has seen; set it after restoring a checkpoint.
    """

    def __init__(
        self,
        run: OpenRun,
        *,
        model: nn.Module,
        split: StoreSplit,
        plan: PlainPlan,
        seed: int,
        loss: Loss,
        micro_batch: int,
    ) -> None:
        self.plan = plan
        self.done = 0
        self._run = run
        self._model = model
        self._split = split
        self._seed = seed
        self._loss = loss
        self._micro_batch = micro_batch
        counts = split.counts
        self._users = np.repeat(np.arange(len(counts)), counts)
        self._examples = np.concatenate([np.arange(count) for count in counts])
        self._order = (-1, np.empty(0, dtype=np.int64))

    @property
    def folder(self) -> RunFolder:
        """Where the run lies."""
        return self._run.folder

    @property
    def remaining(self) -> int:
        """Steps still to do."""
        return self.plan.steps - self.done

    def __iter__(self) -> Iterator[Step]:
        """Each remaining step, with its gradient in ``.grad``."""
        while self.remaining:
            step = self._step()
            self.done += 1
            yield step

    def _step(self) -> Step:
        begin = time.monotonic()
        rows = self._rows(self.done)
        gathered = self._split.gather(self._users[rows], self._examples[rows])
        device = next(self._model.parameters()).device
        units = Units.from_flat(
            gathered.tokens, gathered.offsets, np.arange(len(rows) + 1), gathered.targets
        ).to(device)
        targets = units.target_counts()
        for parameter in trainable_parameters(self._model).values():
            parameter.grad = None
        total = 0.0
        for at in range(0, len(rows), self._micro_batch):
            here = slice(at, at + self._micro_batch)
            width = int(units.lengths[here].max())
            losses = row_losses(
                self._loss,
                self._model,
                units.input_ids[here, :width],
                units.lengths[here],
                None if units.targets is None else units.targets[here, :width],
            )
            mean = (losses * targets[here]).sum() / targets.sum().clamp(min=1)
            mean.backward()  # type: ignore[no-untyped-call]
            total += float(mean.detach())
        torch.nn.utils.clip_grad_norm_(list(trainable_parameters(self._model).values()), 1.0)
        return Step(
            number=self.done + 1,
            operator={
                "rows": len(rows),
                "loss": finite_or_none(total),
                "seconds": round(time.monotonic() - begin, 4),
            },
        )

    def _rows(self, step: int) -> np.ndarray:
        """The rows of a step: consecutive parts of one shuffled pass after another."""
        total = len(self._users)
        size = min(self.plan.batch_size, total)
        per_pass = total // size
        epoch, part = divmod(step, per_pass)
        if self._order[0] != epoch:
            order = np.random.default_rng([self._seed, epoch]).permutation(total)
            self._order = (epoch, order)
        rows = self._order[1][part * size : (part + 1) * size]
        by_length = np.argsort(-self._split.lengths(self._users[rows], self._examples[rows]))
        return rows[by_length]

    def finish(self) -> None:
        """Note the end of the run and settle with the store."""
        self._run.finish()
        self._run.close()

    def close(self) -> None:
        """Let go of the folder."""
        self._run.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
