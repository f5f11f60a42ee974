"""The gradient engines on one machine and model: exactness, sensitivity and the price of a step."""

from __future__ import annotations

import copy
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from userdp.errors import UseError
from userdp.gradients import (
    ENGINES,
    ClippedSum,
    Engine,
    Units,
    causal_lm_loss,
    clipped_sum,
    get_engine,
    trainable_parameters,
)
from userdp.gradients.clipping import squared_norm
from userdp.gradients.engines.choice import choose
from userdp.training.config import TrainConfig
from userdp.training.devices import AUTO, choose_device
from userdp.training.lora import add_adapters
from userdp.training.models import read_model, resolve
from userdp.vocabulary import require_count

NORM_TOLERANCE = 1e-5
_MOST_TOKENS = 128
_LEFT_OUT = 3
"""Units that are left out in turn, to measure by how much each moves the sum."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SelftestConfig:
    """What to test.

    Args:
        model: "bundled", a folder, or a name on the hub.
        group_size: examples of a unit.
        units: units in the cohort; at least 2.
        length: tokens of an example; by default what the model reads, and at most 128.
        rounds: timed rounds.
        lora_rank: adapters of this rank in place of all weights.
        device: auto (cuda where there is one, else cpu), cpu, cuda or cuda:N.
    """

    model: str = "bundled"
    group_size: int = 4
    units: int = 8
    length: int | None = None
    rounds: int = 5
    lora_rank: int | None = None
    device: str = AUTO

    def __post_init__(self) -> None:
        for name in ("group_size", "rounds"):
            require_count(name, getattr(self, name))
        require_count("units", self.units, at_least=2)
        if self.length is not None:
            require_count("length", self.length, at_least=2)


def run_selftest(config: SelftestConfig) -> dict[str, Any]:
    """Test every engine on random tokens; reads no data and spends no privacy.

    Returns:
        ``engines``: for each its ``norm_error`` (largest relative difference of a unit's norm from
        the reference's in float64), ``largest_move`` (by how much leaving one unit out moved the
        sum, over C; for the first three units), ``step_ratio`` (median time over the ordinary
        forward and backward pass of the same rows, interleaved) and ``passed``; and the engine
        that `auto` takes, with its reason.

    Raises:
        UseError: there is no such model or device, or the model is too short for ``length``.
    """
    device = str(choose_device(config.device))
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UseError(
            f"there is no device {device!r} on this machine", hint="leave --device out"
        ) from error
    train = TrainConfig(model=config.model, lora_rank=config.lora_rank)
    model = add_adapters(read_model(resolve(config.model)), train).to(device).eval()
    _move_adapters(model)
    length = _length(model, config.length)
    units = _cohort(model, config, length, device)
    wide = copy.deepcopy(model).double()
    exact = clipped_sum(wide, causal_lm_loss, units, l2_clip_norm=1.0)
    del wide
    # A clip that bites, so that the largest move is C up to the margin.
    bound = float(exact.norms.min()) / 2
    rows = len(units.lengths)
    ratios = _step_ratios(model, units, bound, rounds=config.rounds)
    engines = []
    for name in ENGINES:
        off, move = _exactness(get_engine(name), model, units, bound, exact)
        engines.append(
            {
                "engine": name,
                "norm_error": off,
                "largest_move": move,
                "step_ratio": ratios[name],
                "passed": off <= NORM_TOLERANCE and move <= 1,
            }
        )
    choice = choose(model, causal_lm_loss, units, micro_batch=rows)
    return {
        "model": config.model,
        "device": device,
        "units": config.units,
        "group_size": config.group_size,
        "length": length,
        "engines": engines,
        "auto": choice.engine,
        "reason": choice.reason,
        "passed": all(row["passed"] for row in engines),
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


def _exactness(
    engine: Engine, model: nn.Module, units: Units, bound: float, exact: ClippedSum
) -> tuple[float, float]:
    """The largest relative error of a norm; by how much a unit moved a sum at most, over C.

    The sums are of all units, of all but the first, of all but the first two, and so on.
    """
    sums = [
        engine(
            model,
            causal_lm_loss,
            units.select(first, len(units)),
            l2_clip_norm=bound,
            micro_batch=len(units.lengths),
        )
        for first in range(min(_LEFT_OUT + 1, len(units)))
    ]
    off = float(((sums[0].norms - exact.norms) / exact.norms).abs().max())
    moves = [
        math.sqrt(squared_norm(value - without.value[name] for name, value in whole.value.items()))
        for whole, without in pairwise(sums)
    ]
    return off, max(moves) / bound


def _step_ratios(model: nn.Module, units: Units, bound: float, *, rounds: int) -> dict[str, float]:
    """Median over rounds of each engine's time over the ordinary step's, one after another."""
    parameters = list(trainable_parameters(model).values())
    rows = len(units.lengths)

    def plain() -> None:
        losses = causal_lm_loss(model, units.input_ids, units.lengths)
        torch.autograd.grad(losses.mean(), parameters, allow_unused=True)

    def seconds(step: Callable[[], object]) -> float:
        _wait(units)
        begin = time.perf_counter()
        step()
        _wait(units)
        return time.perf_counter() - begin

    ratios: dict[str, list[float]] = {name: [] for name in ENGINES}
    for _ in range(rounds + 1):
        base = seconds(plain)
        for name in ENGINES:
            engine = partial(get_engine(name), l2_clip_norm=bound, micro_batch=rows)
            ratios[name].append(seconds(partial(engine, model, causal_lm_loss, units)) / base)
    # The first round warms up caches and compilers.
    return {name: statistics.median(of_rounds[1:]) for name, of_rounds in ratios.items()}


def _wait(units: Units) -> None:
    if units.input_ids.is_cuda:
        torch.cuda.synchronize()
