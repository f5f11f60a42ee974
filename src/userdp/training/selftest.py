"""``userdp selftest``: are private steps right on this machine?

What the tests of userdp show was shown on other machines, with other devices, kernels and versions.
The selftest measures the mechanism itself, on the very model: do the engines agree with plain
autograd, does nobody move the sum by more than C, is the noise as the plan says, do processes
agree. What is computed alike on every machine, such as who is drawn, is left to tests.

Rows are made up; nobody's data is read, and no privacy spent. A check is no proof: a fault that
none of them looks for is not found.

A look at random numbers is judged by how surprising it is: minus the logarithm of its probability
under a right mechanism, in nats. A surprise of s or more comes with probability at most 2e^{-s}:
the sum of squares of n Gaussian numbers is chi-square. Noise is rounded to a grid of 2^-20
deviations, which moves it by less than 0.01 nats.

**False alarms.** A look fails at 30 nats: a right mechanism does so with probability below 2e-13.
There is one look at each trainable parameter, hence below 1e-7 for a model of 1e5 of them.
"""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from userdp.core.vocabulary import require_count
from userdp.gradients import ENGINES, Engine, Units, causal_lm_loss, trainable_parameters
from userdp.gradients import noise as drawing
from userdp.gradients.certificate.made_up import Shape, made_up, most_tokens
from userdp.noise.gaussian import TAIL_BITS, NoiseSampler
from userdp.sampling.draws import Cohort, secret_generator
from userdp.training.causal_models import NEW, new_model, read_model
from userdp.training.config import TrainConfig
from userdp.training.devices import AUTO, choose_device
from userdp.training.distributed import Dealing, World, owners_to_all, source_for
from userdp.training.lora import choose_trained
from userdp.training.model_origin import digests_of

INVARIANTS = {"one model": 5, "noise": 5, "noise's tail": 5, "engine": 3, "sensitivity": 3}
"""The checks, with the invariants of docs/invariants.md; the last two are of each engine."""

_MOST_TOKENS, _NEW_TOKENS = 128, 4096
"""Most tokens of a row; tokens in the vocabulary of a new model, for which there is no store."""
_CLOSE, _AT_MOST = 2e-3, 1 + 1e-12
"""Relative: float32 rounds a gradient to 1e-5 and better, and batches aim 1e-3 below C. Times C:
the rest is the rounding of the comparison itself."""
_MOST_NATS = 30.0
_STD, _GRID = 1.37, 2.0**-20
"""The deviation of the noise that is measured, and its public grid."""
_STEPS, _NUMBERS, _DRAWS = 4, 1 << 20, 1 << 12


class Measured(NamedTuple):
    """A measurement: the check it belongs to, what it measured, and its value and bound."""

    check: str
    what: str
    value: float
    bound: float

    @property
    def passed(self) -> bool:
        """Whether the value is within the bound; NaN never is."""
        return self.value <= self.bound

    def used(self) -> tuple[bool, float]:
        """Sort key, the worst last: whether it breaks its bound, and its share of the bound."""
        return not self.passed, self.value / (self.bound or 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class SelftestConfig:
    """The model and the cohort that the selftest uses.

    Args:
        model: "bundled", "new" (of the usual size), a folder, or a name on the hub.
        group_size: examples of a unit.
        units: units in the cohort; at least 2.
        lora_rank: adapters of this rank in place of all weights.
        device: auto (cuda where there is one, else cpu), cpu, cuda or cuda:N.
    """

    model: str = "bundled"
    group_size: int = 4
    units: int = 8
    lora_rank: int | None = None
    device: str = AUTO

    def __post_init__(self) -> None:
        require_count("group_size", self.group_size)
        require_count("units", self.units, at_least=2)


def run_selftest(config: SelftestConfig) -> dict[str, Any]:
    """Ask every check of every engine, on random tokens; reads no data and spends no privacy.

    Where `torch.distributed` has joined several processes, all of them call this, and what they do
    together is checked too.

    Returns:
        ``checks``: for each check, and for each engine where it depends on that: ``invariant``,
        ``check``, ``engine`` (or None), ``what`` was measured that came nearest to its bound on any
        process, its ``value`` and ``bound``, and ``passed``; ``invariants``: by number, whether all
        of its checks passed; and whether all did.

    Raises:
        UseError: there is no such model or device.
    """
    world = World()
    device = choose_device(config.device, processes=world.size)
    learned = TrainConfig(lora_rank=config.lora_rank, train_all=True)
    if config.model == NEW:
        model = new_model(learned, vocab_size=_NEW_TOKENS, seq_len=_MOST_TOKENS)
    else:
        model = read_model(config.model)
    model = choose_trained(model, learned)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:  # zeros, which would leave half of the adapters without a gradient
            nn.init.constant_(parameter, 0.05)
    scene = Scene(model.to(device), units=config.units, group_size=config.group_size)
    own: list[tuple[str | None, Measured]] = [(None, one) for one in machine(scene)]
    for name, engine in ENGINES.items():
        own += [(name, one) for one in gradients(scene, engine)]
    worst = dict[tuple[str, str | None], Measured]()
    for by, one in chain.from_iterable(world.all_gather_object(own)):
        worst[one.check, by] = max(worst.get((one.check, by), one), one, key=Measured.used)
    failed = {INVARIANTS[check] for (check, _), one in worst.items() if not one.passed}
    return {
        "model": config.model,
        "device": str(device),
        "processes": world.size,
        "checks": [
            {"invariant": INVARIANTS[check], "engine": name, "passed": one.passed, **one._asdict()}
            for (check, name), one in worst.items()
        ],
        "invariants": {str(one): one not in failed for one in sorted({*INVARIANTS.values()})},
        "passed": not failed,
    }


class Scene:
    """The model, the cohort and the oracle of the checks; equal on all processes. A collective.

    The oracle shares no code with the engines but the loss: no hooks, no rules, no clip factors.

    Args:
        model: whole, on every process's own device; from here on in evaluation mode, with the
            weights of process 0.
        units: that many ragged ones of made-up tokens, and at their end one of one short row.
        group_size: rows of a unit.

    Attributes:
        oracle: the sum of all units by plain autograd, each scaled to ``l2_clip_norm``; float64, on
            the host.
        l2_clip_norm: half the least norm of a unit's gradient, so that the clip bites every unit.
    """

    def __init__(self, model: nn.Module, *, units: int, group_size: int) -> None:
        self.model, self.world = model.eval(), World()
        self.world.broadcast_model(model)
        self.device = next(model.parameters()).device
        most = min(_MOST_TOKENS, most_tokens(model))
        lengths = [most - 3 * row % max(1, most // 2) for row in range(units * group_size)]
        shape = Shape((*[group_size] * units, 1), (*lengths, 2))
        self.units = made_up(model, shape, masked=False, device=self.device)
        parameters, total = trainable_parameters(model), defaultdict[str, Any](float)
        norms = list[float]()
        for unit in range(len(self.units)):
            losses = causal_lm_loss(model, *self.units.select(unit, unit + 1).cut()[:2])
            found = torch.autograd.grad(
                losses.mean(), list(parameters.values()), allow_unused=True, materialize_grads=True
            )
            gradient = {n: one.cpu().double() for n, one in zip(parameters, found, strict=True)}
            norms.append(float(get_total_norm(gradient.values())))
            for name, part in gradient.items():
                total[name] += part / norms[-1]
        self.l2_clip_norm = min(norms) / 2
        self.oracle = {name: self.l2_clip_norm * value for name, value in total.items()}

    def sum_of(self, engine: Engine, units: Units) -> dict[str, Tensor]:
        """The clipped sum as a step forms it, each process clipping its own units.

        Float64, on the host.
        """
        users = np.repeat(np.arange(len(units)), units.offsets.diff())
        dealing = Dealing(self.world, lambda cohort: np.diff(cohort.offsets))
        rows, offsets = np.arange(len(users)), units.offsets.numpy()
        mine = dealing.mine(Cohort(users=users, examples=rows, offsets=offsets))
        own = Units(
            input_ids=units.input_ids[mine.examples],
            lengths=units.lengths[mine.examples],
            offsets=torch.from_numpy(mine.offsets),
        )
        how: dict[str, Any] = {"l2_clip_norm": self.l2_clip_norm}
        how["micro_batch"] = len(self.units.lengths)
        total, _ = dealing.together(engine(self.model, causal_lm_loss, own, **how), len(mine.users))
        owners_to_all(self.world, total.value)
        return {name: value.cpu() for name, value in total.value.items()}


def _apart(world: World, what: str, value: object) -> tuple[str, int, int]:
    """The number of processes with another ``value`` than process 0, as a `Measured` has it."""
    every = world.all_gather_object(value)
    return f"processes with other {what} than process 0", sum(v != every[0] for v in every), 0


def gradients(scene: Scene, engine: Engine) -> Iterator[Measured]:
    """The clipped sum by parameter is plain autograd's; a unit moves it by C at most.

    The clip bites every unit, so a wrong norm is a wrong sum. Left out are the first unit, and the
    last one, of one short row.
    """
    total = scene.sum_of(engine, scene.units)
    for name, right in scene.oracle.items():
        # What is left of a parameter without a gradient is rounding of the whole.
        size = float(right.norm()) + 1e-4 * scene.l2_clip_norm
        what = f"the distance of the clipped sum for {name} from plain autograd's"
        yield Measured("engine", what, float((total[name] - right).norm()) / size, _CLOSE)
    last = len(scene.units) - 1
    for unit, others in ((0, (1, last + 1)), (last, (0, last))):
        rest = scene.sum_of(engine, scene.units.select(*others))
        moved = float(get_total_norm(total[name] - rest[name] for name in total))
        what = f"how far leaving unit {unit} out moved the sum, over C"
        yield Measured("sensitivity", what, moved / scene.l2_clip_norm, _AT_MOST)


def machine(scene: Scene) -> Iterator[Measured]:
    """All processes hold one model; every parameter's noise has the plan's law, and is new.

    No noise comes twice: not in two steps, parameters or processes. Rows of four numbers are
    compared, signs left out. Two independent numbers on the grid agree with probability at most
    2^-20, two rows with 2^-80, any two of 2^23 rows with 2^-34.
    """
    yield Measured("one model", *_apart(scene.world, "weights", digests_of(scene.model).whole))
    steps = [_noise_of_a_step(scene) for _ in range(_STEPS)]
    for name in steps[0]:
        numbers = np.concatenate([step[name] for step in steps]) / _STD
        law, squares = stats.chi2(numbers.size), np.dot(numbers, numbers)
        surprise = float(-min(law.logcdf(squares), law.logsf(squares)))
        what = f"how surprising is the deviation of the noise of {name}, in nats"
        yield Measured("noise", what, surprise, _MOST_NATS)
    parts = [part for step in steps for part in step.values()]
    rows = np.concatenate([np.abs(part[: part.size // 4 * 4]).reshape(-1, 4) for part in parts])
    rows = rows[rows.any(axis=1)]
    twice = len(rows) - len(np.unique(rows, axis=0))
    yield Measured("noise", "rows of four numbers that came more than once", twice, 0)
    released = np.concatenate(parts)
    off = int((released / _GRID % 1 != 0).sum())
    yield Measured("noise", "how many released numbers lie off the public grid", off, 0)
    same = hashlib.sha256(released.tobytes()).digest()
    yield Measured("noise", *_apart(scene.world, "noisy sums", same))
    yield from tail(scene)


def _noise_of_a_step(scene: Scene) -> dict[str, NDArray[np.float64]]:
    """Noise alone, by parameter; of large parameters the first numbers."""
    parameters = trainable_parameters(scene.model)
    most = max(1, _NUMBERS // len(parameters))
    value = {
        name: torch.zeros(min(most, one.numel()), dtype=torch.float64, device=scene.device)
        for name, one in parameters.items()
    }
    source_for(scene.world, scene.model).add_(value, _STD)
    return {name: tensor.cpu().numpy() for name, tensor in value.items()}


def tail(scene: Scene) -> Iterator[Measured]:
    """Draws have float64's bits; an accelerator's reach as far as delta is charged for.

    Extreme words (all bits zero, all bits one) are fed to the accelerator's transform: a tail that
    is cut gives a smaller end, and a formula that overflows no number. The transform of the CPU is
    NumPy's on every machine. Numbers drawn in float32 show by their empty last 29 bits: each number
    has these with probability 2^-29, nine of 4,096 with 1e-52.
    """
    numbers = np.empty(_DRAWS)
    drawing.draw_on_host(secret_generator(), numbers)
    if source_for(scene.world, scene.model).sampler_on(scene.device) is NoiseSampler.DEVICE:
        generator = torch.Generator(device=scene.device)
        generator.seed()
        numbers = drawing.draw_on_device(generator, _DRAWS).cpu().numpy()
        for word, end in ((0, math.sqrt(2 * TAIL_BITS * math.log(2))), (2**63 - 1, 0.0)):

            def equal(tensor: Tensor, word: int = word, **options: object) -> Tensor:
                return tensor.fill_(word)

            with mock.patch.object(Tensor, "random_", equal):
                found = float(drawing.draw_on_device(generator, 2).abs().max())
            what = f"the distance of the noise of {scene.device} from words {word:x} to {end:.2f}"
            yield Measured("noise's tail", what, abs(found - end), 1e-9)
    narrow = int((numbers == numbers.astype(np.float32)).sum())
    what = f"of {_DRAWS:,} numbers of noise, those that float32 can hold"
    yield Measured("noise's tail", what, narrow, 8)
