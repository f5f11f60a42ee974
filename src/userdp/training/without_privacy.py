"""Training without privacy: shuffled batches and the mean loss per target token. No ε is claimed.

For pre-training on public text, and as what private training is compared with.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray

from userdp.core.codec import canonical, encode
from userdp.core.errors import UseError
from userdp.data.selection_strategies import Strategy
from userdp.data.splits import Split
from userdp.gradients import require_masked, trainable_parameters
from userdp.ledger import RunFolder
from userdp.training.collate import gather_units
from userdp.training.config import PlainPlan, PrivateOptions
from userdp.training.distributed import World
from userdp.training.model_origin import digests_of
from userdp.training.open_run import Training, open_run
from userdp.training.optimizer_guards import require_same_parameters
from userdp.training.released_model import release, save_model
from userdp.training.step_mechanism import Step
from userdp.training.store_losses import losses_of, rows_of

_GRADIENT_NORM = 1.0
"""The usual clip of a whole batch's gradient in language-model training; no user's is bounded."""


class PlainRun(AbstractContextManager["PlainRun"]):
    """The steps of a run without privacy that remain; the store's claim is infinite from here on.

    Use what `open` answers as a context manager; call `save`, or `finish`, after the last step.

    Args:
        of: the training, by a `PlainPlan`; its ``base`` is known.
        seed: of the order of the examples.
        clip_norm: of a step's mean gradient, so that no step runs away; None leaves it as it is.

    Attributes:
        folder: where the run lies.
        done: steps that the model has seen; set it after restoring a checkpoint.
    """

    def __init__(
        self, of: Training, *, seed: int, clip_norm: float | None = _GRADIENT_NORM
    ) -> None:
        assert isinstance(of.plan, PlainPlan)
        chosen = of.options.scores is not None or of.options.selection != Strategy.RANDOM
        if World().size > 1 or chosen:
            raise UseError(
                "a run without privacy is for comparison: it trains in one process on all examples",
                hint="leave torchrun, learning.selection and run.scores out",
            )
        require_same_parameters(of.model, of.optimizer)
        if of.store.meta.loss_mask:
            require_masked(of.loss)
        split = of.store.split(Split.TRAIN)
        if not len(split.counts):
            raise UseError("the store has no training users")
        self.plan, self.done, self.folder = of.plan, 0, RunFolder(of.out)
        self._of, self._split, self._seed, self._clip_norm = of, split, seed, clip_norm
        self._users, self._examples = rows_of(split, np.arange(len(split.counts)))
        self._epoch, self._order = -1, np.empty(0, dtype=np.int64)

    def open(self) -> Self:
        """Charge the store, for which nothing can be claimed from here on, and begin or resume."""
        of = self._of
        described = replace(
            of,
            options=PrivateOptions(exact_log=True, resume=of.options.resume),
            identity={"training length": canonical(self.plan), **of.identity},
            train={"plain": encode(self.plan), **(of.train or {})},
        )
        self._run = open_run(described)
        return self

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
        parameters = list(trainable_parameters(self._of.model).values())
        units = gather_units(self._split, self._users[rows], self._examples[rows])
        units = units.to(parameters[0].device)
        targets = units.target_counts()
        for parameter in parameters:
            parameter.grad = None
        total = 0.0
        for at in range(0, len(rows), self._of.options.micro_batch):
            here = slice(at, at + self._of.options.micro_batch)
            losses = losses_of(self._of.loss, self._of.model, units, here)
            mean = (losses * targets[here]).sum() / targets.sum().clamp(min=1)
            mean.backward()  # type: ignore[no-untyped-call]
            total += float(mean.detach())
        if self._clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(parameters, self._clip_norm)
        loss = total if math.isfinite(total) else None  # JSON knows no NaN
        facts = {"rows": len(rows), "loss": loss, "seconds": round(time.monotonic() - begin, 4)}
        return Step(number=self.done + 1, operator=facts)

    def _rows(self, step: int) -> NDArray[np.int64]:
        """The rows of a step: consecutive parts of one shuffled pass after another."""
        total = len(self._users)
        size = min(self.plan.batch_size, total)
        epoch, part = divmod(step, total // size)
        if self._epoch != epoch:
            self._epoch = epoch
            self._order = np.random.default_rng([self._seed, epoch]).permutation(total)
        rows = self._order[part * size : (part + 1) * size]
        # The longest first, so that rows of like length share a pass.
        return rows[np.argsort(-self._split.lengths(self._users[rows], self._examples[rows]))]

    def save(self) -> Path:
        """Write the model to the run's folder, and finish; see `PrivateRun.save`."""
        tokenizer = self._of.store.tokenizer_path
        write = partial(save_model, tokenizer=tokenizer, lineage=self._run.lineage_to_write())
        self.finish(release(self._of.model, self.folder, write))
        return self.folder.released

    def finish(self, weights: str | None = None) -> None:
        """Note the end of the run and settle with the store; see `PrivateRun.finish`."""
        self._run.finish(weights or digests_of(self._of.model).whole)
        self.close()

    def close(self) -> None:
        """Let go of the folder; twice does no harm."""
        self._run.close()

    def __exit__(self, *error: object) -> None:
        self.close()
