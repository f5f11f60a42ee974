r"""A silo's round: T local steps, each clipped, noised once, and divided by a public constant.

.. math:: θ \leftarrow θ - \frac{η}{D} \Big( \sum_a g_a + N(0, σ² C² I) \Big)

with one g_a per item (LocalItemDP, LocalGroupDP), per subject, the mean of its clipped items
(HiGradAvgDP), or one for the whole mini-batch (UserLDP). What is sent is θ after T steps less what
the server sent: post-processing of the noisy sums, and nothing else.

Under ``paper`` the same steps are the published ones, unsound parts included: mini-batches of a
fixed size, σ_Z of the mini-batch's largest group, the realised number of subjects as denominator.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from userdp.errors import FailureError, UseError
from userdp.federated.accounting import Algorithm
from userdp.federated.admission import admit, require_width
from userdp.federated.data import DATA_FILE, SubjectItems
from userdp.federated.ledger import LEDGER_FILE, LocalStep, SiloLedger, require_own_ledger
from userdp.federated.models import Weights, build_model, put_weights, weights_of
from userdp.federated.plan import FederationPlan
from userdp.federated.rounds import load_weights, save_weights
from userdp.files import OPERATOR_FILE, write_json
from userdp.gradients import Loss, NoiseSource, Units, get_engine, trainable_parameters
from userdp.gradients.model_randomness import secret_randomness
from userdp.sampling.coins import distinct_indices, poisson_indices, secret_generator

Indices = NDArray[np.int64]
PLAN_FILE = "federation.json"
RELEASED_FILE = "released.npz"
ABSENT_FILE = "absent.json"
"""Operator-only: how many of the silo's items do not take part; see `admission`."""


def look(folder: Path, index: int) -> tuple[FederationPlan, dict[str, tuple[int, ...]]]:
    """The plan of the silo in ``folder`` and the shapes of what it trains; writes nothing.

    Another process may be in the middle of a round.

    Raises:
        UseError: whatever `Silo` would refuse.
    """
    plan = FederationPlan.load(folder / PLAN_FILE)
    _require_member(plan, index)
    require_width(plan.model, SubjectItems.load(folder / DATA_FILE))
    require_own_ledger(folder / LEDGER_FILE, plan, index)
    model, _ = build_model(plan.model)
    return plan, {name: tuple(p.shape) for name, p in trainable_parameters(model).items()}


def _require_member(plan: FederationPlan, index: int) -> None:
    if not 0 <= index < plan.silos:
        raise UseError(f"there is no silo {index} in a federation of {plan.silos}")


def silo_folder(federation: Path, index: int) -> Path:
    """Where silo ``index`` keeps its things; a deployment moves the folder to the silo."""
    return federation / f"silo-{index:02d}"


class Silo:
    """One member of a federation, with its data, its ledger and its noise.

    Guarantee: `run_round` charges each step before it reads data, and returns a function of the
    weights it was given and of T noisy sums, whose noise was drawn once for each. A round that was
    released before is answered with the same update; one that was interrupted is refused.

    Args:
        folder: holds `DATA_FILE`, `PLAN_FILE`, the ledger, and the last update.
        plan: the federation's, which the operator of this silo agreed to.
        index: this silo's number, from 0.
        data: its items. Those that the model cannot read, and those of a subject over the cap,
            count as absent (`userdp.federated.admission`): a refusal would tell the others.
        model: and ``loss``: built from the plan by default.
        engine: of `userdp.gradients`.
        unsafe_seed: for tests: known draws and noise void every claim.

    Raises:
        UseError: the silo's number is not in the plan, the rows are of another model's width, or
            the ledger is another federation's. None of it depends on what an item holds.

    Attributes:
        absent: how many items do not take part; operator-only.
    """

    def __init__(
        self,
        folder: Path,
        *,
        plan: FederationPlan,
        index: int,
        data: SubjectItems,
        model: nn.Module | None = None,
        loss: Loss | None = None,
        engine: str = "auto",
        unsafe_seed: int | None = None,
    ) -> None:
        _require_member(plan, index)
        if (model is None) != (loss is None):
            raise UseError("give a model and its loss together")
        if model is None:
            require_width(plan.model, data)
        self.plan, self.index, self.folder = plan, index, folder
        data, self.absent = admit(plan, data, own_model=model is not None)
        self._data = data
        self._rows = torch.from_numpy(data.rows)
        self._lengths = torch.from_numpy(data.lengths)
        if model is None or loss is None:
            model, loss = build_model(plan.model)
        self._model, self._loss = model, loss
        self._engine = get_engine(engine)
        self._generator = secret_generator(unsafe_seed)
        self._noise = NoiseSource(unsafe_noise_seed=unsafe_seed)
        self._unsafe_seed = unsafe_seed
        self._noise_std = plan.noise_multiplier * plan.l2_clip_norm
        self._parameters = trainable_parameters(model)
        self._noised = 0
        self.group_sizes: list[int] = []
        self.ledger = SiloLedger(folder / LEDGER_FILE, plan, index)

    @classmethod
    def open(cls, folder: Path, index: int, *, engine: str = "auto") -> Silo:
        """The silo in a folder that `userdp federate` made.

        How many of its items do not take part is written there, for the silo's operator alone.
        """
        plan = FederationPlan.load(folder / PLAN_FILE)
        data = SubjectItems.load(folder / DATA_FILE)
        silo = cls(folder, plan=plan, index=index, data=data, engine=engine)
        write_json(folder / ABSENT_FILE, silo.absent.to_dict(), mode=OPERATOR_FILE)
        return silo

    def run_round(self, number: int, weights: Weights) -> Weights:
        """T local steps from ``weights``; what they add, float32 by name.

        Raises:
            UseError: the weights are another model's.
            FailureError: the plan does not allow this round.
        """
        released = self._released(number)
        if released is not None:
            return released
        put_weights(self._model, weights)
        self.ledger.begin_round(number)
        noised_before = self._noised
        for _ in range(self.plan.local_steps):
            self.ledger.attempt(number, self._record())
            self._step()
        noised = self._noised - noised_before
        if self.plan.algorithm.private and noised != self.plan.local_steps:
            raise FailureError(
                f"noise was drawn {noised} times in {self.plan.local_steps} steps of round "
                f"{number}: every step needs its own, so nothing is sent"
            )
        after = weights_of(self._model)
        update = {name: after[name] - weights[name] for name in after}
        self.ledger.release(number)
        save_weights(self.folder / RELEASED_FILE, update, rounds=number)
        return update

    def close(self) -> None:
        """Close the ledger."""
        self.ledger.close()

    def _record(self) -> LocalStep:
        """What a step is about to use, read off this silo's own parts."""
        planned = LocalStep.of_plan(self.plan)
        most = int(self._data.counts.max()) if self._data.items else 0
        fits = self.plan.paper or most <= self.plan.group_size
        return LocalStep(
            algorithm=str(self.plan.algorithm),
            sampling_probability=self.plan.sampling_probability,
            group_size=self.plan.group_size if fits else most,
            l2_clip_norm=self.plan.l2_clip_norm,
            noise_std=None if planned.noise_std is None else self._noise_std,
            denominator=planned.denominator,
            noise_sampler=(
                self._noise.sampler_on(torch.device("cpu"))  # where `_zeros` puts every sum
                if self.plan.algorithm.private
                else None
            ),
        )

    def _step(self) -> None:
        drawn = self._draw()
        subjects = self._data.subjects[drawn]
        counts = np.bincount(subjects) if len(subjects) else np.zeros(0, dtype=np.int64)
        largest = int(counts.max()) if len(subjects) else 0
        self.group_sizes.append(largest)
        if not self.plan.algorithm.private:
            self._apply(self._mean(drawn), 1.0)
            return
        noise_std = self._noise_std
        denominator = self.plan.denominator
        if self.plan.paper and self.plan.algorithm is Algorithm.LOCAL_GROUP:
            noise_std = self.plan.paper_noise_of_group(largest) * self.plan.l2_clip_norm
        if self.plan.paper and self.plan.algorithm is Algorithm.HIGRADAVG:
            denominator = float(max(1, int((counts > 0).sum())))
        with secret_randomness(self._unsafe_masks(len(self.group_sizes))):
            total = self._sum(drawn, subjects)
        self._add_noise(total, noise_std)
        self._apply(total, denominator)

    def _unsafe_masks(self, step: int) -> str | None:
        """For tests: what this step's dropout masks follow from."""
        if self._unsafe_seed is None:
            return None
        return f"{self._unsafe_seed}/silo {self.index}/step {step}"

    def _draw(self) -> Indices:
        """Every item independently with probability p; under ``paper`` exactly B of them."""
        if self.plan.paper:
            size = min(self._data.items, max(1, round(self.plan.batch_size)))
            return np.sort(distinct_indices(self._generator, self._data.items, size))
        return poisson_indices(self._generator, self._data.items, self.plan.sampling_probability)

    def _sum(self, drawn: Indices, subjects: Indices) -> dict[str, Tensor]:
        """The clipped sum: of sensitivity C per item, per subject, or 2C for the mini-batch."""
        algorithm = self.plan.algorithm
        if algorithm is Algorithm.USER_LDP:
            return self._clipped(drawn, np.array([0, len(drawn)], dtype=np.int64))
        singles = np.arange(len(drawn) + 1, dtype=np.int64)
        if algorithm is not Algorithm.HIGRADAVG:
            return self._clipped(drawn, singles)
        # Σ_a (1/|S_a|) Σ_{i in S_a} clip(g_i): one sum for each group size that occurs.
        _, place, counts = np.unique(subjects, return_inverse=True, return_counts=True)
        sizes = counts[place]
        total = self._zeros()
        for size in np.unique(sizes):
            part = drawn[sizes == size]
            found = self._clipped(part, np.arange(len(part) + 1, dtype=np.int64))
            for name, value in found.items():
                total[name].add_(value, alpha=1.0 / int(size))
        return total

    def _clipped(self, drawn: Indices, offsets: Indices) -> dict[str, Tensor]:
        if not len(drawn):
            return self._zeros()
        rows = torch.from_numpy(drawn)
        units = Units(
            input_ids=self._rows[rows],
            lengths=self._lengths[rows],
            offsets=torch.from_numpy(offsets),
        )
        return self._engine(
            self._model,
            self._loss,
            units,
            l2_clip_norm=self.plan.l2_clip_norm,
            micro_batch=256,
        ).value

    def _mean(self, drawn: Indices) -> dict[str, Tensor]:
        """FedAvg: the mean gradient of the mini-batch, as it is."""
        if not len(drawn):
            return self._zeros()
        rows = torch.from_numpy(drawn)
        loss = self._loss(self._model, self._rows[rows], self._lengths[rows]).mean()
        gradients = torch.autograd.grad(loss, list(self._parameters.values()))
        return {
            name: gradient.double()
            for name, gradient in zip(self._parameters, gradients, strict=True)
        }

    def _zeros(self) -> dict[str, Tensor]:
        return {
            name: torch.zeros(parameter.shape, dtype=torch.float64)
            for name, parameter in self._parameters.items()
        }

    def _add_noise(self, total: dict[str, Tensor], noise_std: float) -> None:
        self._noise.add_(total, noise_std)
        self._noised += 1

    def _apply(self, total: dict[str, Tensor], denominator: float) -> None:
        rate = self.plan.learning_rate / denominator
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                parameter.sub_((rate * total[name]).to(parameter.dtype))

    def _released(self, number: int) -> Weights | None:
        path = self.folder / RELEASED_FILE
        if not path.exists():
            return None
        update, kept = load_weights(path)
        return update if kept == number else None
