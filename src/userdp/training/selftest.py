"""``userdp selftest``: are private steps right on this machine?

What the tests of userdp show was shown on other machines, with other devices, kernels and versions.
The selftest measures the mechanism itself, on the very model: do the engines agree with plain
autograd, does nobody move the sum by more than C, is the noise as the plan says, do processes
agree. `CHECKS` lists all of it, with the invariants of docs/invariants.md. What is computed alike
on every machine, such as who is drawn, is left to tests.

Rows are made up; nobody's data is read, and no privacy spent. A check is no proof: a fault that
none of them looks for is not found.

A look at random numbers is judged by how surprising it is: minus the logarithm of its probability
under a right mechanism, in nats. A surprise of s or more comes with probability at most 2e^{-s}:
the sum of squares of n Gaussian numbers is chi-square. Noise is rounded to a grid of 2^-20
deviations, which moves it by less than 0.01 nats.

**False alarms.** A look fails at 30 nats: a right mechanism does so with probability below 2e-13.
There is one look at each trainable parameter and process, hence below 1e-7 for a model of 1e5
trainable tensors.
"""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor, nn

from userdp.core.vocabulary import require_count
from userdp.gradients import ENGINES, ClippedSum, Units, causal_lm_loss, trainable_parameters
from userdp.gradients import noise as drawing
from userdp.gradients.certificate.made_up import Shape, made_up, most_tokens
from userdp.gradients.noise import NoiseSource
from userdp.noise import Gaussian
from userdp.noise.gaussian import TAIL_BITS, NoiseSampler
from userdp.sampling.cohort import Cohort
from userdp.sampling.coins import secret_generator
from userdp.training.config import TrainConfig
from userdp.training.devices import AUTO, choose_device
from userdp.training.distributed import current_world
from userdp.training.distributed_run import Dealing, owners, owners_to_all, source_for
from userdp.training.lora import add_adapters
from userdp.training.models import NEW, new_model, read_model

_MOST_TOKENS, _SHORT = 128, 2
_NEW_TOKENS = 4096
"""In the vocabulary of a new model, which no store names here."""
_CLOSE = 2e-3
"""Relative: float32 rounds a gradient to 1e-5 and better, and batches aim 1e-3 below C."""
_AT_MOST = 1 + 1e-12
"""Times C; the rest is the rounding of the comparison itself."""
_MOST_NATS = 30.0
_STD, _GRID = 1.37, 2.0**-20
"""Of the noise that is looked at, and its public grid, as docs/concepts/noise.md states it."""
_STEPS, _NUMBERS = 4, 1 << 20
_ROW, _ROWS = 4, 1 << 12
"""Numbers that are compared at once, and how many times of each parameter and process."""
_DRAWS = 1 << 12


class Measured(NamedTuple):
    """What was measured, in words; what it came to; and the most that a right mechanism reaches."""

    what: str
    value: float
    bound: float

    @property
    def passed(self) -> bool:
        """Whether the value is within the bound; NaN never is."""
        return self.value <= self.bound


@dataclass(frozen=True, kw_only=True, slots=True)
class SelftestConfig:
    """What to test.

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
    world = current_world()
    device = choose_device(config.device, processes=world.size)
    learned = TrainConfig(lora_rank=config.lora_rank)
    if config.model == NEW:
        model = new_model(learned, vocab_size=_NEW_TOKENS, seq_len=_MOST_TOKENS)
    else:
        model = read_model(config.model)
    model = add_adapters(model, learned)
    _move_adapters(model.to(device))
    units = made_up_units(model, units=config.units, group_size=config.group_size)
    scene, rows = Scene(model, units), []
    for check in CHECKS:
        for name in ENGINES if check.by_engine else [None]:
            scene.engine = ENGINES[name or "auto"]
            every = chain.from_iterable(world.all_gather_object(list(check.measure(scene))))
            # That which breaks its bound, or uses up most of it.
            worst = max(every, key=lambda one: (not one.passed, one.value / (one.bound or 1)))
            facts = {"invariant": check.invariant, "check": check.name, "engine": name}
            rows.append({**facts, **worst._asdict(), "passed": worst.passed})
    failed = {row["invariant"] for row in rows if not row["passed"]}
    known = sorted({check.invariant for check in CHECKS})
    return {
        "model": config.model,
        "device": str(device),
        "processes": world.size,
        "checks": rows,
        "invariants": {str(one): one not in failed for one in known},
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
    lengths = [most - 3 * row % max(1, most // 2) for row in range(units * group_size)]
    shape = Shape((*[group_size] * units, 1), (*lengths, _SHORT))
    device = next(model.parameters()).device
    return made_up(model, shape, masked=False, device=device)


class Scene:
    """What is checked; equal on all processes. A collective.

    The oracle shares no code with the engines but the loss: no hooks, no rules, no clip factors.

    Args:
        model: whole, on every process's own device; from here on in evaluation mode, with the
            weights of process 0.
        units: made-up ones, on the model's device.

    Attributes:
        oracle: the sum of all units by plain autograd, each scaled to ``l2_clip_norm``; float64, on
            the host.
        norms: of each unit's gradient, by plain autograd.
        l2_clip_norm: half the least of these, so that the clip bites every unit.
        engine: that is checked.
    """

    def __init__(self, model: nn.Module, units: Units) -> None:
        self.model, self.units, self.world = model.eval(), units, current_world()
        self.world.broadcast_model(model)
        self.norms, total = list[float](), defaultdict[str, Any](float)
        for unit in range(len(units)):
            gradient = _plain_gradient(model, units, unit)
            self.norms.append(_norm(gradient))
            for name, part in gradient.items():
                total[name] += part / self.norms[-1]
        self.l2_clip_norm = min(self.norms) / 2
        self.engine = ENGINES["auto"]
        self.oracle = {name: self.l2_clip_norm * value for name, value in total.items()}

    def noise(self) -> NoiseSource:
        """A new source of noise, as a run's own is made."""
        return source_for(self.world, self.model, Gaussian(multiplier=1.0))

    def sum_of(self, units: Units) -> ClippedSum:
        """The clipped sum, as a step forms it, on the host.

        The units are dealt out to the processes, each clips its own, and the sums are added up.
        """
        rows = np.arange(len(units.lengths))
        users = np.repeat(np.arange(len(units)), units.offsets.diff())
        dealing = Dealing(self.world, lambda cohort: np.diff(cohort.offsets))
        mine = dealing.mine(Cohort(users=users, examples=rows, offsets=units.offsets.numpy()))
        own = Units(
            input_ids=units.input_ids[mine.examples],
            lengths=units.lengths[mine.examples],
            offsets=torch.from_numpy(mine.offsets),
        )
        most, bound = len(self.units.lengths), self.l2_clip_norm
        total = self.engine(self.model, causal_lm_loss, own, l2_clip_norm=bound, micro_batch=most)
        total, _ = dealing.together(total, len(mine.examples))
        owners_to_all(self.world, total.value)
        return replace(total, value={name: value.cpu() for name, value in total.value.items()})

    def apart(self, one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
        """The distance of two sums over C."""
        return _norm({name: one[name] - other[name] for name in one}) / self.l2_clip_norm

    def differ(self, what: str, arrays: Iterable[NDArray[Any]]) -> Measured:
        """How many processes have other arrays than process 0."""
        digest = hashlib.sha256(b"".join(array.tobytes() for array in arrays)).digest()
        everybodys = self.world.all_gather_object(digest)
        different = sum(one != everybodys[0] for one in everybodys)
        return Measured(f"processes with other {what} than process 0", different, 0)


def _plain_gradient(model: nn.Module, units: Units, unit: int) -> dict[str, Tensor]:
    """Of one unit, by plain autograd; float64, on the host."""
    parameters = trainable_parameters(model)
    losses = causal_lm_loss(model, *units.select(unit, unit + 1).cut()[:2])
    found = torch.autograd.grad(
        losses.mean(), list(parameters.values()), allow_unused=True, materialize_grads=True
    )
    return {name: part.cpu().double() for name, part in zip(parameters, found, strict=True)}


def _norm(value: Mapping[str, Tensor]) -> float:
    return math.sqrt(sum(float(part.square().sum()) for part in value.values()))


def weights(scene: Scene) -> Iterator[Measured]:
    """All processes hold one model."""
    held = [parameter.detach().view(-1).view(torch.uint8) for parameter in scene.model.parameters()]
    yield scene.differ("weights", [values.cpu().numpy() for values in held])


def noise(scene: Scene) -> Iterator[Measured]:
    """Every parameter's and process's noise has the plan's law, lies on the grid, and is new.

    No noise comes twice: not in two steps, parameters or processes. Rows of four numbers are
    compared, signs left out, at the same places of each piece that one process draws. Two
    independent numbers on the grid agree with probability at most 2^-20, two rows with 2^-80, any
    two of 2^23 rows with 2^-34.
    """
    steps = [_released(scene) for _ in range(_STEPS)]
    pieces, rows = defaultdict[str, list[NDArray[Any]]](list), list[NDArray[Any]]()
    for step in steps:
        for name, owner in owners(step, scene.world.size).items():
            numbers = step[name].numpy() / _STD
            pieces[name].append(numbers)
            pieces[f"process {owner}"].append(numbers)
            whole = numbers[: min(_ROW * _ROWS, numbers.size // _ROW * _ROW)]
            rows.append(np.abs(whole).reshape(-1, _ROW))
    for name, parts in pieces.items():
        numbers = np.concatenate(parts)
        law, squares = stats.chi2(numbers.size), np.dot(numbers, numbers)
        surprise = float(-min(law.logcdf(squares), law.logsf(squares)))
        told = f"how surprising is the deviation of the noise of {name}, in nats"
        yield Measured(told, surprise, _MOST_NATS)
    every = np.concatenate(rows)
    every = every[(every > 0).any(1)]
    twice = len(every) - len(np.unique(every, axis=0))
    yield Measured("rows of four numbers of noise that came more than once", twice, 0)
    released = np.stack([torch.cat(list(step.values())).numpy() for step in steps])
    off = int((released / _GRID % 1 != 0).sum())
    yield Measured("how many released numbers lie off the public grid", off, 0)
    # A right number is rounded to zero with probability 2^-21 in a step.
    silent = int((released == 0).all(0).sum())
    yield Measured(f"how many numbers got no noise in any of {_STEPS} steps", silent, 0)
    yield scene.differ("noisy sums", released)


def _released(scene: Scene) -> dict[str, Tensor]:
    """What a new source makes of zeros, on the host; of large parameters the first numbers."""
    parameters, value = trainable_parameters(scene.model), dict[str, Tensor]()
    for name, parameter in parameters.items():
        size = min(max(1, _NUMBERS // len(parameters)), parameter.numel())
        value[name] = scene.units.lengths.new_zeros(size, dtype=torch.float64)
    scene.noise().add_(value, _STD)
    return {name: tensor.cpu() for name, tensor in value.items()}


def tail(scene: Scene) -> Iterator[Measured]:
    """Draws have float64's bits; an accelerator's reach as far as delta is charged for.

    Extreme words (all bits zero, all bits one) are fed to the accelerator's transform: a tail that
    is cut gives a smaller end, and a formula that overflows no number. The transform of the CPU is
    NumPy's on every machine. Numbers drawn in float32 show by their empty last 29 bits: each number
    has these with probability 2^-29, nine of 4,096 with 1e-52.
    """
    device = scene.units.lengths.device
    numbers = np.empty(_DRAWS)
    drawing.draw_on_host(secret_generator(), numbers)
    if scene.noise().sampler_on(device) is NoiseSampler.DEVICE:
        generator = torch.Generator(device=device)
        generator.seed()
        numbers = drawing.draw_on_device(generator, _DRAWS).cpu().numpy()
        for word, end in ((0, math.sqrt(2 * TAIL_BITS * math.log(2))), (2**63 - 1, 0.0)):

            def equal(tensor: Tensor, word: int = word, **options: object) -> Tensor:
                return tensor.fill_(word)

            with mock.patch.object(Tensor, "random_", equal):
                found = float(drawing.draw_on_device(generator, 2).abs().max())
            what = f"the distance of the noise of {device} from words {word:x} from {end:.2f}"
            yield Measured(what, abs(found - end), 1e-9)
    narrow = int((numbers == numbers.astype(np.float32)).sum())
    yield Measured(f"of {_DRAWS:,} numbers of noise, those that float32 can hold", narrow, 8)


def exactness(scene: Scene) -> Iterator[Measured]:
    """Norms, and the clipped sum parameter by parameter, are those of plain autograd."""
    total = scene.sum_of(scene.units)
    # Units are dealt out to the processes, so the norms are in another order.
    for norm, told in zip(sorted(scene.norms), sorted(total.norms.tolist()), strict=False):
        yield Measured("a norm's distance from plain autograd's", abs(told - norm) / norm, _CLOSE)
    for name, right in scene.oracle.items():
        # What is left of a parameter without a gradient is rounding of the whole.
        size = float(right.norm()) + 1e-4 * scene.l2_clip_norm
        what = f"the distance of the clipped sum for {name} from plain autograd's"
        yield Measured(what, float((total.value[name] - right).norm()) / size, _CLOSE)


def sensitivity(scene: Scene) -> Iterator[Measured]:
    """Leaving out the first unit, or the last one, of one short row, moves the sum by at most C."""
    last = len(scene.units) - 1
    whole = scene.sum_of(scene.units).value
    for unit, others in ((0, (1, last + 1)), (last, (0, last))):
        moved_by = scene.apart(whole, scene.sum_of(scene.units.select(*others)).value)
        yield Measured(f"how far leaving unit {unit} out moved the sum, over C", moved_by, _AT_MOST)


class Check(NamedTuple):
    """A question in a few words, its invariant, its measure, and whether it asks each engine."""

    name: str
    invariant: int
    measure: Callable[[Scene], Iterator[Measured]]
    by_engine: bool = False


# Whether all processes hold one model comes first, since the others ask them together.
CHECKS = (
    Check("one model", 5, weights),
    Check("noise", 5, noise),
    Check("noise's tail", 5, tail),
    Check("engine", 3, exactness, by_engine=True),
    Check("sensitivity", 3, sensitivity, by_engine=True),
)
