r"""A silo: a user store, a run over it, and the rounds in which that run goes on.

.. math:: θ \leftarrow θ - \frac{η}{D} \Big( \sum_a g_a + N(0, σ² C² I) \Big)

T times a round, with the units a, their clip and the public denominator D of the plan. The silo
sends θ after T steps minus the θ that the server sent: post-processing of the noisy sums, and
nothing else.
"""

from __future__ import annotations

from functools import singledispatch
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import nn

from userdp.claims.lineage import Lineage
from userdp.core.errors import FailureError, UseError
from userdp.core.files import read_json, sweep, write_json
from userdp.data.store_meta import read_meta
from userdp.data.user_store import UserStore
from userdp.federated.federation_plan import (
    PLAN_FILE,
    RUN,
    STORE,
    FederationPlan,
    LanguageModel,
    ModelSpec,
)
from userdp.federated.rounds import Weights, load_weights, misfits, save_weights
from userdp.gradients import Loss, causal_lm_loss, trainable_parameters
from userdp.ledger import RunFolder, RunRecord
from userdp.plans import Plan
from userdp.training.causal_models import NEW, new_model, read_model, require_fit
from userdp.training.config import PrivateOptions, TrainConfig, UnsafeSeeds
from userdp.training.lora import choose_trained
from userdp.training.model_origin import lineage_of_model
from userdp.training.open_run import Training
from userdp.training.private_run import PrivateRun
from userdp.training.without_privacy import PlainRun

BEGUN_FILE, RELEASED_FILE = "begun.json", "released.safetensors"


def silo_folder(federation: Path, index: int) -> Path:
    """The folder of silo ``index``; a deployment moves it to the silo's machine."""
    return federation / f"silo-{index:02d}"


def read_silo(folder: Path, index: int) -> FederationPlan:
    """The plan to which the operator of the silo in ``folder`` agreed.

    Nothing is written: another process may be in the middle of a round.

    Raises:
        UseError: the silo is not in the plan, its store is made for another model, or its run is
            of another federation. No item's content decides it, so that others may see the refusal.
    """
    plan = FederationPlan.load(folder / PLAN_FILE)
    if not 0 <= index < plan.silos:
        raise UseError(f"there is no silo {index} in a federation of {plan.silos}")
    meta, spec = read_meta(folder / STORE), plan.model
    if (meta.tokenizer_sha256, meta.seq_len) != (spec.tokenizer_sha256, spec.seq_len):
        raise UseError(
            "the silo's store was prepared with another tokenizer or another length of examples "
            f"than the plan's model reads, which is {spec.seq_len} tokens",
            hint="prepare it again with the federation's tokenizer.json and --seq-len",
        )
    run = RunFolder(folder / RUN)
    own = {"federation": plan.digest, "silo": index}
    record = RunRecord.find(run.path)  # None where a kill left an empty ledger
    if record is not None and not own.items() <= record.begin.facts.items():
        raise UseError(
            f"the run in {folder} is of another federation or of another silo: what was spent "
            "there cannot be continued here",
            hint="give every federation a folder of its own",
        )
    return plan


class Silo:
    """One member of a federation, with its store, its ledgers and its noise.

    Guarantee: the steps of `run_round` are those of a private run (`userdp.training.private_run`):
    each is charged before it reads data, on a fresh cohort and with fresh noise, and the whole of
    this silo's plan is reserved in its store's ledger before the first. A round's result is a
    function of the given weights and of T noisy sums. A round that was released before is
    answered with the same update. A round that was interrupted is refused, and stays charged.

    A subject's items over the cap never train. The subject's own hash decides which items stay
    (`userdp.data.selection`), never the presence of others.

    Args:
        folder: holds `PLAN_FILE`, the `STORE`, the `RUN`, and the last update.
        index: this silo's number, from 0.
        model: of the plan (`build_model`). Silos of one process may share it, since every round
            begins with the server's weights.
        loss: of the model.
        unsafe_seed: FOR TESTS ONLY: known draws and noise void every claim.

    Raises:
        UseError: as `read_silo`; or the model cannot read the store's tokens.
    """

    def __init__(
        self,
        folder: Path,
        index: int,
        model: nn.Module,
        loss: Loss,
        *,
        unsafe_seed: int | None = None,
    ) -> None:
        self.plan = read_silo(folder, index)
        self.folder, self.index = folder, index
        sweep(folder)  # the half-written update of a round that was killed
        self.store = UserStore.open(folder / STORE)
        if isinstance(self.plan.model, LanguageModel):
            require_fit(model, self.plan.model.model, self.store)
        self._model, self._loss = model, loss
        self._optimizer = torch.optim.SGD(
            trainable_parameters(model).values(), lr=self.plan.learning_rate
        )
        self._unsafe_seed = unsafe_seed
        self.run: PrivateRun | PlainRun | None = None

    def sits_out(self, number: int) -> bool:
        """Whether this silo began the round before, or a later one, and has no update of it."""
        begun = self.folder / BEGUN_FILE
        last = read_json(begun, what="the last round")["round"] if begun.exists() else 0
        return number <= last and self._released(number) is None

    def _released(self, number: int) -> Weights | None:
        """The update of a round that was the last to be released."""
        released = self.folder / RELEASED_FILE
        weights, last = load_weights(released) if released.exists() else ({}, 0)
        return weights if last == number else None

    def run_round(self, number: int, weights: Weights) -> Weights:
        """T local steps from ``weights``; what they add, float32 by name.

        Raises:
            UseError: the weights are another model's.
            FailureError: the plan does not allow this round, or the silo began it before.
        """
        if (update := self._released(number)) is not None:
            return update
        self._require_turn(number)
        put_weights(self._model, weights)
        if self.run is None:
            self.run = self._open(number)
        write_json(self.folder / BEGUN_FILE, {"round": number})  # before any step is charged
        for _ in islice(self.run, self.plan.local.steps):
            self._optimizer.step()
        after = weights_of(self._model)
        update = {name: after[name] - weights[name] for name in after}
        if not self.run.remaining:
            self.run.finish()
        save_weights(self.folder / RELEASED_FILE, update, rounds=number)
        return update

    def _require_turn(self, number: int) -> None:
        if not 1 <= number <= self.plan.rounds or self.index not in self.plan.schedule(number):
            raise FailureError(
                f"the server asks silo {self.index} for round {number}, in which it does not run "
                f"by the plan of {self.plan.rounds} rounds: it would exceed the plan's epsilon",
                hint="a federation that goes on needs a plan and a budget of its own",
            )
        if self.sits_out(number):
            raise FailureError(
                f"silo {self.index} began round {number} before, or a later one, and its steps are "
                "charged: it sits this round out"
            )

    def _open(self, number: int) -> PrivateRun | PlainRun:
        """Begin the silo's run, or go on with it."""
        steps, spec = self.plan.of_silo(self.index), self.plan.model
        base = Lineage()  # of the first round's weights; a new model descends from nobody
        if isinstance(spec, LanguageModel):
            base = lineage_of_model(self.store, name=spec.model)
        training = Training(
            model=self._model,
            optimizer=self._optimizer,
            store=self.store,
            plan=steps,
            out=self.folder / RUN,
            loss=self._loss,
            options=PrivateOptions(
                resume=RunFolder(self.folder / RUN).resume.exists(),
                # A server may choose weights at which a batch rounds each gradient by who else is
                # in the batch; and the drawn items must not decide what is asked of the model.
                engine="reference",
                allow_large_delta=True,  # the plan's δ was judged for all silos together
                unsafe_seeds=UnsafeSeeds(draws=self._unsafe_seed, noise=self._unsafe_seed),
            ),
            facts={"federation": self.plan.digest, "silo": self.index},
            base=base,
        )
        if isinstance(steps, Plan):
            private = PrivateRun(training).open()
            # Each round begins at the server's weights, whose claim is the federation's.
            private.share_model()
            return private
        run = PlainRun(training, seed=spec.seed, clip_norm=None).open()
        earlier = sum(self.index in self.plan.schedule(r) for r in range(1, number))
        run.done = earlier * self.plan.local.steps
        return run

    def close(self) -> None:
        """Let go of the run's folder; what remains of its plan stays reserved."""
        if self.run is not None:
            self.run.close()


@singledispatch
def build_model(spec: ModelSpec) -> tuple[nn.Module, Loss]:
    """The model and its loss; equal specs give equal public initial weights.

    A new kind of `ModelSpec` registers here what it builds.

    Raises:
        UseError: a language model cannot be loaded.
    """
    raise NotImplementedError(spec.kind)


@build_model.register
def _(spec: LanguageModel) -> tuple[nn.Module, Loss]:
    config = TrainConfig(
        model=spec.model,
        layers=spec.layers,
        width=spec.width,
        heads=spec.heads,
        lora_rank=spec.lora_rank,
        train_all=True,
        seed=spec.seed,
    )
    if spec.model == NEW:
        model = new_model(config, vocab_size=spec.vocab_size, seq_len=spec.seq_len)
    else:
        model = read_model(spec.model)
    return choose_trained(model, config).train(), causal_lm_loss


def weights_of(model: nn.Module) -> Weights:
    """The trainable parameters as float32 arrays, by name; a federation exchanges nothing else."""
    return {
        name: parameter.detach().to("cpu", torch.float32).numpy().copy()
        for name, parameter in trainable_parameters(model).items()
    }


def put_weights(model: nn.Module, weights: Weights) -> None:
    """Set the trainable parameters.

    Raises:
        UseError: names, shapes or dtypes are another model's, or a number is not finite.
    """
    parameters = trainable_parameters(model)
    if off := misfits(weights, {name: tuple(p.shape) for name, p in parameters.items()}):
        raise UseError(
            f"the weights are another model's: they differ in {', '.join(off[:5])}",
            hint="every silo and the server need the same federation plan and the same base model",
        )
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(torch.from_numpy(np.ascontiguousarray(weights[name])))
