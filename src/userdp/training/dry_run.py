"""The dry run: what a run would cost and claim, with nothing charged and nothing written.

There is one exception: if the store is refused for an exact number of its people's text, the
refusal tells something about that text, and is noted as a look.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch.utils.benchmark import Timer

from userdp.claims import Claim
from userdp.claims.claims import foreseen, store_claim
from userdp.claims.words import foreseen_in_words
from userdp.core.errors import UseError
from userdp.core.vocabulary import delta_up, round_up
from userdp.data.integrity import require_intact
from userdp.gradients.certificate.state import State
from userdp.gradients.engines.passes import rows_per_pass
from userdp.gradients.model_randomness import secret_randomness
from userdp.ledger import StoreLedger
from userdp.ledger.admission import follow
from userdp.ledger.lines import StoreLine
from userdp.training.open_run import OpenRun, Training
from userdp.training.preflight import made_up_units, room_for
from userdp.training.step_mechanism import StepMechanism


@dataclass(frozen=True, kw_only=True, slots=True)
class DryRun:
    """What a run would cost and claim. Its ``str`` says it in words.

    Args:
        noise_multiplier: sigma.
        steps: T.
        seconds_per_step: the clipped sum of an expected cohort, measured on made-up rows, and
            without the optimizer's update.
        seconds: of the whole run.
        bytes: the most memory held until the end of a full pass of made-up rows, measured: that of
            tensors on a GPU, else that of this process. An optimizer's state is not in it.
        claim: of the model, as `userdp.claims.claims.foreseen` has it; with its ``conditions``, as
            far as they are known before the run, in words.
        store: what the store's people will have paid then.
    """

    noise_multiplier: float
    steps: int
    seconds_per_step: float
    seconds: float
    bytes: int
    claim: Mapping[str, Any]
    store: Claim

    def __str__(self) -> str:
        paid = self.store.guarantee
        return "\n".join(
            [
                "A dry run: nothing was charged, and nothing was written.",
                f"noise multiplier  {self.noise_multiplier:.4g}",
                f"time              {self.seconds_per_step:.3g} s a step, {self.steps} steps: "
                f"{self.seconds / 60:.3g} minutes, measured on made-up rows",
                f"memory            {self.bytes / 2**20:,.0f} MiB with a full pass, measured; the "
                "optimizer's state comes on top",
                f"the model claims  {foreseen_in_words(self.claim)}",
                *(f"                  provided that {one}" for one in self.claim["conditions"]),
                f"the store claims  epsilon {round_up(paid.epsilon)}, "
                f"delta {delta_up(paid.delta, 3)}",
            ]
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as ``userdp train --dry-run --json`` prints them."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return {**values, "store": self.store.to_dict()}


def dry_run_of(of: Training, mechanism: StepMechanism) -> DryRun:
    """The cost and the claim of a run that was made and not opened.

    Args:
        of: the training, as it would be written down.
        mechanism: of its steps.

    Raises:
        UseError: as opening it would.
        FailureError: memory has no room for a pass of as many rows as were asked for.
    """
    plan = mechanism.plan
    if of.resume:
        raise UseError("a dry run is of a run that begins", hint="leave out --resume")
    require_intact(of.store)
    opening = OpenRun(of)
    history = after = StoreLedger(of.store.path).history()
    at = history.fixed_at(opening.constants)
    told = [one.in_words for one in of.base.conditions] if of.base else []
    claim = {**foreseen(history, plan, base=of.base, at=at), "conditions": told}

    def counted(*lines: StoreLine) -> None:
        """Count a charge and refuse it as ever, and write nothing."""
        nonlocal after
        after = follow(history, lines)

    opening.charge_plan(counted, history, opening.run_id)
    seconds = _seconds_per_step(of, mechanism)
    return DryRun(
        noise_multiplier=plan.noise.multiplier,
        steps=plan.steps,
        seconds_per_step=seconds,
        seconds=seconds * plan.steps,
        bytes=_most_bytes(mechanism.device),
        claim=claim,
        store=store_claim(after),
    )


def _most_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def _seconds_per_step(of: Training, mechanism: StepMechanism) -> float:
    """Seconds of one step of an expected cohort, from one full pass of made-up rows."""
    plan, meta, state = mechanism.plan, of.store.meta, State(of.model, of.loss)
    rows = plan.sampling.group_size if plan.sampling.by_user else 1
    most = rows_per_pass(meta.seq_len, mechanism.micro_batch, mechanism.device)
    units = max(1, most // rows)
    hint = "take a smaller --micro-batch, or --set learning.activation_checkpointing=true"
    try:
        with room_for(f"a pass of {most} rows", hint=hint):
            made = made_up_units(of.model, units, rows, meta.seq_len, masked=meta.loss_mask)
            seconds = seconds_of(lambda: mechanism.clip(made)) / units
    finally:
        state.put_back()
    return seconds * plan.denominator / mechanism.world.size


@secret_randomness()
def seconds_of(run: Callable[[], object]) -> float:
    """Seconds that ``run`` takes by the clock, after a first call that allocates and compiles."""
    threads = torch.get_num_threads()
    return Timer("run()", globals={"run": run}, num_threads=threads).timeit(1).median
