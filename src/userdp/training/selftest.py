"""``userdp selftest``: every check of the mechanism, of every engine; and the price of a step.

The random checks (`userdp.training.checks`) are asked in several rounds, and all of them whatever
the first ones say.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from userdp.clip import Clip
from userdp.errors import UseError
from userdp.gradients import (
    ENGINES,
    Units,
    causal_lm_loss,
    get_engine,
    trainable_parameters,
)
from userdp.gradients.engines.choice import choose
from userdp.gradients.shards import shard
from userdp.noise import Gaussian
from userdp.sampling import PoissonUsers
from userdp.sampling.coins import secret_generator
from userdp.training.checks.check import Verdict
from userdp.training.checks.every import CHECKS, verdicts
from userdp.training.checks.subject import Subject
from userdp.training.config import TrainConfig
from userdp.training.devices import AUTO, choose_device
from userdp.training.distributed import World, current_world
from userdp.training.distributed_run import shared_secret
from userdp.training.lora import add_adapters
from userdp.training.models import read_model, resolve
from userdp.training.questions import engine_of
from userdp.training.shared_noise import source_for
from userdp.vocabulary import require_count

_MOST_TOKENS = 128
_STD = 1.7
"""Of the noise that is looked at; no power of two, at which float32's lattice would be the grid."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SelftestConfig:
    """What to test.

    Args:
        model: "bundled", a folder, or a name on the hub.
        group_size: examples of a unit.
        units: units in the cohort; at least 2.
        length: tokens of an example; by default what the model reads, and at most 128.
        rounds: timed rounds, and rounds of what is random.
        lora_rank: adapters of this rank in place of all weights.
        sharded: each process of torchrun holds a part of the model.
        device: auto (cuda where there is one, else cpu), cpu, cuda or cuda:N.
    """

    model: str = "bundled"
    group_size: int = 4
    units: int = 8
    length: int | None = None
    rounds: int = 5
    lora_rank: int | None = None
    sharded: bool = False
    device: str = AUTO

    def __post_init__(self) -> None:
        for name in ("group_size", "rounds"):
            require_count(name, getattr(self, name))
        require_count("units", self.units, at_least=2)
        if self.length is not None:
            require_count("length", self.length, at_least=2)


def run_selftest(config: SelftestConfig) -> dict[str, Any]:
    """Ask every check of every engine, on random tokens; reads no data and spends no privacy.

    Where `torch.distributed` has joined several processes, all of them call this, and what they do
    together is checked too. A sharded model has one engine, which is called "auto".

    Returns:
        ``checks``: for each check, and each engine where it depends on that, ``invariant``,
        ``check``, ``engine`` (or None), ``what`` was measured that came nearest to its bound, its
        ``value`` and ``bound``, and ``passed`` (None where the model cannot be asked);
        ``invariants``: by number, whether all of its checks passed; ``step_ratio``: by engine, the
        median time over the ordinary forward and backward pass of the same rows, interleaved (of
        one process); and the engine that `auto` takes, with its reason.

    Raises:
        UseError: there is no such model or device, or the model is too short for ``length``.
    """
    world = current_world()
    device = str(choose_device(config.device, processes=world.size))
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UseError(
            f"there is no device {device!r} on this machine", hint="leave --device out"
        ) from error
    train = TrainConfig(model=config.model, lora_rank=config.lora_rank)
    model = add_adapters(read_model(resolve(config.model)), train).to(device).train()
    _move_adapters(model)
    world.broadcast_model(model)
    length = _length(model, config.length)
    units = _cohort(model, config, length, device)
    alone = world.size == 1
    names = ["auto"] if config.sharded else list(ENGINES)
    choice = None
    if config.sharded:
        shard(model)
    else:
        choice = choose(model, causal_lm_loss, units, micro_batch=len(units.lengths))
    checked = _checks(model, units, config, names, length=length, world=world)
    found = [one["passed"] for one in checked]
    return {
        "model": config.model,
        "device": device,
        "processes": world.size,
        "units": config.units,
        "group_size": config.group_size,
        "length": length,
        "checks": checked,
        "invariants": {
            str(number): all(
                one["passed"] is not False for one in checked if one["invariant"] == number
            )
            for number in sorted({one["invariant"] for one in checked})
        },
        "step_ratio": _step_ratios(model, units, names, rounds=config.rounds) if alone else {},
        "auto": "sharded" if choice is None else choice.engine,
        "reason": "the model is sharded" if choice is None else choice.reason,
        "passed": False not in found,
    }


def _checks(
    model: nn.Module,
    units: Units,
    config: SelftestConfig,
    names: Iterable[str],
    *,
    length: int,
    world: World,
) -> list[dict[str, Any]]:
    """A row for each check, and for each engine where it depends on that."""
    law = Gaussian(multiplier=1.0)

    def subject(engine: str) -> Subject:
        return Subject(
            model=model,
            loss=causal_lm_loss,
            masked=False,
            engine=engine_of(model, engine),
            clip=Clip(l2_norm=1.0),
            sampling=PoissonUsers(sampling_probability=0.01, group_size=config.group_size),
            law=law,
            noise_std=_STD,
            noise=partial(source_for, world, model, law),
            coins=lambda: secret_generator(shared_secret(world)),
            micro_batch=len(units.lengths),
            longest=length,
            world=world,
            more=units,
        )

    machine = [check for check in CHECKS if not check.by_engine]
    rounds: list[Verdict] = []
    for _ in range(config.rounds):
        rounds += verdicts(subject("auto"), machine)
    worst = {
        check.name: max((one for one in rounds if one.check is check), key=_strain)
        for check in machine
    }
    rows = [_row(verdict, None) for verdict in worst.values()]
    for name in names:
        engines = [check for check in CHECKS if check.by_engine]
        rows += [_row(verdict, name) for verdict in verdicts(subject(name), engines)]
    return sorted(rows, key=lambda row: int(row["invariant"]))


def _strain(verdict: Verdict) -> float:
    return -1.0 if verdict.worst is None else verdict.worst.strain


def _row(verdict: Verdict, engine: str | None) -> dict[str, Any]:
    check, worst = verdict.check, verdict.worst
    return {
        "invariant": check.invariant,
        "check": check.name,
        "engine": engine,
        "what": None if worst is None else worst.what,
        "value": None if worst is None else worst.value,
        "bound": None if worst is None else worst.bound,
        "passed": None if worst is None else worst.passed,
    }


def _move_adapters(model: nn.Module) -> None:
    """Adapters begin as zeros, which would leave half of them without a gradient."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.copy_(0.02 * torch.randn(parameter.shape, generator=generator))


def _length(model: nn.Module, asked: int | None) -> int:
    reads = int(getattr(model.config, "max_position_embeddings", _MOST_TOKENS))
    if asked is None:
        return min(reads, _MOST_TOKENS)
    if asked > reads:
        raise UseError(f"the model reads at most {reads} tokens, --length asks for {asked}")
    return asked


def _cohort(model: nn.Module, config: SelftestConfig, length: int, device: str) -> Units:
    generator = torch.Generator().manual_seed(0)
    rows = config.units * config.group_size
    vocabulary = int(getattr(model.config, "vocab_size"))  # noqa: B009 (nn.Module answers Tensor)
    lengths = torch.randint(max(2, length // 2), length + 1, (rows,), generator=generator)
    lengths[0] = length
    return Units(
        input_ids=torch.randint(vocabulary, (rows, length), generator=generator),
        lengths=lengths,
        offsets=torch.arange(0, rows + 1, config.group_size),
    ).to(device)


def _step_ratios(
    model: nn.Module, units: Units, names: Iterable[str], *, rounds: int
) -> dict[str, float]:
    """Median over rounds of each engine's time over the ordinary step's, one after another."""
    parameters = list(trainable_parameters(model).values())
    rows = len(units.lengths)
    bound = 1.0

    def plain() -> None:
        losses = causal_lm_loss(model, units.input_ids, units.lengths)
        torch.autograd.grad(losses.mean(), parameters, allow_unused=True)

    def seconds(step: Callable[[], object]) -> float:
        _wait(units)
        begin = time.perf_counter()
        step()
        _wait(units)
        return time.perf_counter() - begin

    ratios: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(rounds + 1):
        base = seconds(plain)
        for name in ratios:
            engine = partial(get_engine(name), l2_clip_norm=bound, micro_batch=rows)
            ratios[name].append(seconds(partial(engine, model, causal_lm_loss, units)) / base)
    # The first round warms up caches and compilers.
    return {name: statistics.median(of_rounds[1:]) for name, of_rounds in ratios.items()}


def _wait(units: Units) -> None:
    if units.input_ids.is_cuda:
        torch.cuda.synchronize()
