r"""Checks of what is random, the noise and the cohorts, and of what processes make of them.

A look at random numbers is judged by how surprising it is: minus the logarithm of its probability
under a right mechanism, in nats. A surprise of s or more comes with probability at most 2e^{-s}:
the sum of squares of n Gaussian numbers is chi-square, the number of heads among n coins binomial,
and the distance D of the distribution of n numbers from the true one obeys
:math:`P(D \ge d) \le 2e^{-2nd^2}` (Dvoretzky, Kiefer and Wolfowitz 1956; Massart 1990). Noise is
rounded to a grid of 2^-20 deviations, which moves these by less than 0.01 nats.

**False alarms.** A look fails at 30 nats: a right mechanism does so with probability below 2e-13.
There are two looks at each trainable parameter and less than a hundred others, hence below 1e-7
for a model of 1e5 trainable tensors.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any
from unittest import mock

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from userdp.gradients import noise as drawing
from userdp.gradients import trainable_parameters
from userdp.gradients.shards import is_sharded, local
from userdp.noise.gaussian import TAIL_BITS, NoiseSampler
from userdp.sampling import PoissonUsers
from userdp.sampling.coins import secret_generator
from userdp.training.distributed_run import owners, shared_secret
from userdp.training.selftest_gradients import Measured, Scene, publicly_seeded

Floats = NDArray[np.float64]

_MOST_NATS = 30.0
_STD = 1.37
"""Of the noise that is looked at."""
_GRID = 2.0**-20
"""The public grid of noise of that deviation, as docs/concepts/noise.md states it."""
_STEPS, _NUMBERS = 4, 1 << 20
_ROW, _ROWS = 4, 1 << 12
"""Numbers that are compared at once, and how many times of each parameter and process."""
_DRAWS = 1 << 12
_USERS, _COHORTS, _CHANCE = 512, 2000, 1 / 16


def _of_squares(numbers: Floats) -> float:
    """The surprise of the sum of squares of numbers that should be standard Gaussian ones."""
    law, squares = stats.chi2(numbers.size), np.dot(numbers, numbers)
    return float(-min(law.logcdf(squares), law.logsf(squares)))


def _of_distribution(numbers: Floats) -> float:
    """The surprise of the distribution of numbers that should be standard Gaussian ones."""
    places = (np.arange(numbers.size) + 0.5) / numbers.size
    distance = np.abs(stats.norm.cdf(np.sort(numbers)) - places).max() + 0.5 / numbers.size
    return float(2 * numbers.size * distance**2)


def _of_count(heads: int, coins: int, chance: float) -> float:
    """The surprise of the number of heads among some coins."""
    law = stats.binom(coins, chance)
    return float(-min(law.logcdf(heads), law.logsf(heads - 1)))


def _different(scene: Scene, what: str, arrays: Iterable[NDArray[Any]]) -> Measured:
    """How many processes have other arrays than process 0."""
    digest = hashlib.sha256(b"".join(array.tobytes() for array in arrays)).digest()
    everybodys = scene.world.all_gather_object(digest)
    different = sum(one != everybodys[0] for one in everybodys)
    return Measured(f"processes with other {what} than process 0", different, 0)


def weights(scene: Scene) -> Iterator[Measured]:
    """All processes hold one model."""
    whole = [p.detach() for p in scene.model.parameters() if not is_sharded(p)]
    yield _different(scene, "weights", [p.view(-1).view(torch.uint8).cpu().numpy() for p in whole])


def noise(scene: Scene) -> Iterator[Measured]:
    """Every parameter's and process's noise has the plan's law, lies on the grid, and is new.

    No noise comes twice: not in two steps, parameters or processes. Rows of four numbers are
    compared, signs left out, at the same places of each piece that one process draws. Two
    independent numbers on the grid agree with probability at most 2^-20, two rows with 2^-80, any
    two of 2^23 rows with 2^-34.
    """
    steps = [_released(scene) for _ in range(_STEPS)]
    processes = 1 if scene.scattered else scene.world.size
    pieces, rows = defaultdict[str, list[Floats]](list), list[Floats]()
    for step in steps:
        for name, owner in owners(step, processes).items():
            numbers = step[name].numpy() / _STD
            pieces[name].append(numbers)
            pieces[f"process {owner}"].append(numbers)
            whole = numbers[: min(_ROW * _ROWS, numbers.size // _ROW * _ROW)]
            rows.append(np.abs(whole).reshape(-1, _ROW))
    looks = {"deviation": _of_squares, "distribution": _of_distribution}
    for (name, parts), (what, surprise) in itertools.product(pieces.items(), looks.items()):
        told = f"how surprising is the {what} of the noise of {name}, in nats"
        yield Measured(told, surprise(np.concatenate(parts)), _MOST_NATS)
    # Whole sums are equal everywhere; parts must not be.
    gathered = scene.world.all_gather_object(np.concatenate(rows)) if scene.scattered else rows
    every = np.concatenate(gathered)
    every = every[(every > 0).any(1)]
    again = len(every) - len(np.unique(every, axis=0))
    yield Measured("rows of four numbers of noise that came more than once", again, 0)
    released = [np.concatenate([v.numpy().ravel() for v in step.values()]) for step in steps]
    off = sum(int((step / _GRID % 1 != 0).sum()) for step in released)
    yield Measured("how many released numbers lie off the public grid", off, 0)
    # A right number is rounded to zero with probability 2^-21 in a step.
    silent = int((np.stack(released) == 0).all(0).sum())
    yield Measured(f"how many numbers got no noise in any of {_STEPS} steps", silent, 0)
    if not scene.scattered:
        yield _different(scene, "noisy sums", released)


def _released(scene: Scene) -> dict[str, Tensor]:
    """What a new source makes of zeros, on the host; of large parameters the first numbers."""
    device, parameters = scene.units.lengths.device, trainable_parameters(scene.model)
    most = max(1, _NUMBERS // len(parameters))
    sizes = {name: min(most, local(p).numel()) for name, p in parameters.items()}
    value = {n: torch.zeros(s, dtype=torch.float64, device=device) for n, s in sizes.items()}
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


def cohorts(scene: Scene) -> Iterator[Measured]:
    """Each user joins each cohort by an independent secret coin of the plan's probability."""
    drawn, again = _drawn(scene), _drawn(scene)
    yield _different(scene, "cohorts", [drawn])
    repeated = np.array_equal(drawn, again)
    yield Measured("whether equal public seeds give equal cohorts", repeated, 0)
    times = drawn.sum(0)
    often = max(_of_count(int(n), _COHORTS, _CHANCE) for n in (times.min(), times.max()))
    both = int((drawn[:, 0::2] & drawn[:, 1::2]).sum())
    looks = {
        "the number of all that were drawn": _of_count(int(times.sum()), drawn.size, _CHANCE),
        # The most surprising of so many: each of them is as likely to be.
        "how often a single user was drawn": often - math.log(_USERS),
        "how often neighbours were drawn together": _of_count(both, drawn.size // 2, _CHANCE**2),
    }
    for what, surprise in looks.items():
        yield Measured(f"how surprising is {what}, in nats", max(0.0, surprise), _MOST_NATS)


def _drawn(scene: Scene) -> NDArray[np.bool_]:
    """Who was drawn in which cohort, by a new sampler that is made after public seeds."""
    drawn = np.zeros((_COHORTS, _USERS), dtype=np.bool_)
    sampling = PoissonUsers(sampling_probability=_CHANCE, group_size=1)
    with publicly_seeded():
        coins = secret_generator(shared_secret(scene.world))
        sampler = sampling.sampler(np.ones(_USERS, dtype=np.int64), coins)
        for row in drawn:
            row[sampler.draw().users] = True
    return drawn
