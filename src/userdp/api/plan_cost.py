"""What a plan is predicted to cost on other hardware, and a budget in hours turned into B."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from userdp.errors import UseError

if TYPE_CHECKING:
    from userdp.data.meta import StoreMeta
    from userdp.gradients.cost import Forecaster
    from userdp.planning.options import Machine
    from userdp.planning.proposal import Proposal

_ROUNDS = 4
"""Most group sizes tried until the one that a budget in hours leads to is the one it is for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Predictor:
    """Predicts steps of a model on a machine, for any group size.

    Args:
        machine: with a hardware.
        model: as for `userdp.train`.
        meta: of the store: the vocabulary and the length of examples.
    """

    machine: Machine
    model: str
    meta: StoreMeta

    def of(self, group_size: int) -> Forecaster:
        """The forecaster for units of so many examples."""
        from userdp.gradients.cost import Forecaster, hardware_of
        from userdp.training.config import TrainConfig
        from userdp.training.depths import models_by_depth

        assert self.machine.hardware is not None
        hardware = hardware_of(self.machine.hardware)
        config = TrainConfig(model=self.model, lora_rank=self.machine.lora_rank)
        build, depth = models_by_depth(
            config, vocab_size=self.meta.vocab_size, seq_len=self.meta.seq_len
        )
        return Forecaster(
            build=build,
            depth=depth,
            length=self.meta.seq_len,
            group_size=group_size,
            hardware=hardware,
            micro_batch=self.machine.micro_batch,
        )

    def with_cost(self, proposal: Proposal) -> Proposal:
        """The proposal, and in its prediction what it costs by each method."""
        from userdp.gradients.cost import METHODS

        plan = proposal.plan
        group = plan.sampling.group_size if plan.sampling.by_user else 1
        forecaster = self.of(group)
        rows = [
            asdict(
                forecaster.forecast(
                    method,
                    gradients=proposal.prediction["gradients_per_step"],
                    steps=plan.steps,
                    price_per_hour=self.machine.price_per_hour,
                )
            )
            for method in METHODS
        ]
        cost: dict[str, Any] = {
            "hardware": self.machine.hardware,
            "figures": forecaster.hardware.source,
            "reached": forecaster.hardware.reached,
            "methods": rows,
        }
        return replace(proposal, prediction={**proposal.prediction, "cost": cost})

    def proposed(self, propose: Callable[[float], Proposal], *, steps: int) -> Proposal:
        """The proposal whose B is what the device hours buy at the group size that it has.

        B decides the group size, and what a gradient costs depends on the group size; where the
        two go round in a circle, the least B is taken, which the hours buy at each size tried.
        """
        hours = self.machine.device_hours
        assert hours is not None
        bought: dict[int, float] = {}
        group = 1
        for _ in range(_ROUNDS):
            bought[group] = self.of(group).gradients_for(hours, steps=steps)
            if bought[group] < 1:
                raise UseError(
                    f"{hours:g} device hours on {self.machine.hardware} are predicted to buy less "
                    f"than one gradient in each of {steps} steps",
                    hint="raise --device-hours, or lower --steps",
                )
            proposal = propose(bought[group])
            plan = proposal.plan
            group = plan.sampling.group_size if plan.sampling.by_user else 1
            if group in bought:
                break
        least = min(bought.values())
        return proposal if proposal.compute <= bought.get(group, 0) else propose(least)
