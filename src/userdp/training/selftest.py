"""``userdp selftest``: are private steps right on this machine?

What the tests of userdp show was shown on other machines, with other devices, kernels and versions.
The selftest measures the mechanism itself, on the very model: do the engines agree with plain
autograd, does nobody move the sum by more than C, is the noise as the plan says, are cohorts
secret, do the processes agree. `CHECKS` lists all of it, with the invariants of docs/invariants.md.

Rows are made up; nobody's data is read, and no privacy spent. A check is no proof: a fault that
none of them looks for is not found.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn

from userdp.gradients import Units, causal_lm_loss
from userdp.gradients.certificate.made_up import Shape, made_up, most_tokens
from userdp.gradients.engines.choice import why_alone
from userdp.gradients.engines.engine import Task
from userdp.gradients.model_randomness import secret_randomness
from userdp.training import selftest_draws as draws
from userdp.training import selftest_gradients as gradients
from userdp.training.config import TrainConfig
from userdp.training.devices import AUTO, choose_device
from userdp.training.distributed import current_world
from userdp.training.lora import add_adapters
from userdp.training.models import read_model, resolve
from userdp.training.questions import device_of
from userdp.training.selftest_gradients import Measured, Scene
from userdp.vocabulary import require_count

_MOST_TOKENS = 128
_SHORT = 2


class Check(NamedTuple):
    """One question about the mechanism.

    Attributes:
        name: in two or three words.
        invariant: its number in docs/invariants.md.
        measure: measures a scene; a collective.
        by_engine: the answer is the engine's, and not only the machine's.
    """

    name: str
    invariant: int
    measure: Callable[[Scene], Iterator[Measured]]
    by_engine: bool


# Whether all processes hold one model comes first, since the others ask them together.
CHECKS = (
    Check("one model", 5, draws.weights, False),
    Check("noise", 5, draws.noise, False),
    Check("noise's tail", 5, draws.tail, False),
    Check("cohorts", 2, draws.cohorts, False),
    Check("engine", 3, gradients.exactness, True),
    Check("sensitivity", 3, gradients.sensitivity, True),
    Check("infinite gradients", 6, gradients.infinite_gradients, True),
    Check("masks", 14, gradients.masks, True),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class SelftestConfig:
    """What to test.

    Args:
        model: "bundled", a folder, or a name on the hub.
        group_size: examples of a unit.
        units: units in the cohort; at least 2.
        lora_rank: adapters of this rank in place of all weights.
        sharded: each process of torchrun holds a part of the model.
        device: auto (cuda where there is one, else cpu), cpu, cuda or cuda:N.
    """

    model: str = "bundled"
    group_size: int = 4
    units: int = 8
    lora_rank: int | None = None
    sharded: bool = False
    device: str = AUTO

    def __post_init__(self) -> None:
        require_count("group_size", self.group_size)
        require_count("units", self.units, at_least=2)


def run_selftest(config: SelftestConfig) -> dict[str, Any]:
    """Ask every check of every engine, on random tokens; reads no data and spends no privacy.

    Where `torch.distributed` has joined several processes, all of them call this, and what they do
    together is checked too. A sharded model has one engine, which is called "auto".

    Returns:
        ``checks``: for each check, and for each engine where it depends on that: ``invariant``,
        ``check``, ``engine`` (or None), ``what`` was measured that came nearest to its bound on any
        process, its ``value`` and ``bound``, and ``passed``; ``invariants``: by number, whether all
        of its checks passed; and the engine that `auto` takes, with its reason.

    Raises:
        UseError: there is no such model or device.
    """
    world = current_world()
    device = choose_device(config.device, processes=world.size)
    model = read_model(resolve(config.model))
    model = add_adapters(model, TrainConfig(model=config.model, lora_rank=config.lora_rank))
    _move_adapters(model.to(device))
    units = made_up_units(model, units=config.units, group_size=config.group_size)
    engine, reason = "sharded", "the model is sharded"
    if not config.sharded:
        task = Task(model=model.train(), loss=causal_lm_loss, units=units, l2_clip_norm=1.0)
        with secret_randomness():
            alone = why_alone(task)
        engine = "batched" if alone is None else "reference"
        reason = alone or "all that trains has a per-unit rule"
    scene, rows = Scene(model, units, parts=config.sharded), []
    for check in CHECKS:
        for name in scene.engines if check.by_engine else [None]:
            scene.engine = scene.engines[name or "auto"]
            every = world.all_gather_object(list(check.measure(scene)))
            worst = max(itertools.chain.from_iterable(every), key=Measured.strain)
            facts = {"invariant": check.invariant, "check": check.name, "engine": name}
            rows.append({**facts, **worst._asdict(), "passed": worst.passed})
    failed = {row["invariant"] for row in rows if not row["passed"]}
    asked = sorted({check.invariant for check in CHECKS})
    return {
        "model": config.model,
        "device": str(device),
        "processes": world.size,
        "checks": rows,
        "invariants": {str(number): number not in failed for number in asked},
        "auto": engine,
        "reason": reason,
        "passed": not failed,
    }


@torch.no_grad()
def _move_adapters(model: nn.Module) -> None:
    """Adapters begin as zeros, which would leave half of them without a gradient."""
    generator = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.copy_(0.1 * (torch.rand(parameter.shape, generator=generator) - 0.5))


def made_up_units(model: nn.Module, *, units: int, group_size: int) -> Units:
    """Ragged units of made-up tokens, and at their end one unit of one short row."""
    most = min(_MOST_TOKENS, most_tokens(model))
    count = units * group_size
    lengths = [most - 3 * row % max(1, most // 2) for row in range(count)]
    shape = Shape((*[group_size] * units, 1), (*lengths, _SHORT))
    return made_up(model, shape, masked=False, device=device_of(model))
