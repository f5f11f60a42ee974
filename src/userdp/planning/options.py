"""What is asked of the planner, as options; light to import, since the command line shows them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from userdp.errors import UseError
from userdp.vocabulary import require_count, require_positive

MOST_NOISE = 0.1
"""The most noise per coordinate of the mean gradient, in units of the norm of one example's.

Beyond it even a step in which every gradient points the same way has, in that one direction, a
signal of less than ten standard deviations of the noise; real gradients agree far less.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Goals:
    """What a plan is to achieve.

    Args:
        budget: B, gradients per step, in expectation; or give device_hours.
        steps: T, noisy updates.
        algorithm: auto takes the one that adds less noise.
        l2_clip_norm: by default the typical norm of what is clipped: L_ULS(G) or L_ELS (Charles et
            al. 2024, Section 3).
        choose_steps: T may change at the same B times T: the most steps whose noise, averaged over
            all updates, is within 10% of the least.
        extrapolate: allow group sizes beyond the largest measured, with its norm.
        most_noise: refuse plans with more noise than this on a coordinate of the mean gradient,
            in units of the norm of an example's gradient.
        repeat: declare a series of so many runs like this one in the store's ledger, and make
            epsilon that of all of them together: retraining by the calendar. Clip norm, learning
            rate and model may follow earlier runs; sampling, noise, steps and population may not.
        repeat_answers: epsilon of each DP answer that the series is to hold besides, over all runs.
    """

    budget: float | None = None
    steps: int
    algorithm: Literal["auto", "uls", "els"] = "auto"
    l2_clip_norm: float | None = None
    choose_steps: bool = False
    extrapolate: bool = False
    most_noise: float = MOST_NOISE
    repeat: int = 1
    repeat_answers: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        require_count("repeat", self.repeat, at_most=10_000)
        if self.repeat_answers and self.repeat == 1:
            raise UseError(
                "repeat_answers are part of a series, and one run is none",
                hint="give --repeat too; a single answer is asked by userdp stats --epsilon E",
            )
        require_count("steps", self.steps, at_most=10**9)
        require_positive("most_noise", self.most_noise)
        if self.l2_clip_norm is not None:
            require_positive("l2_clip_norm", self.l2_clip_norm)
        if self.algorithm not in ("auto", "uls", "els"):
            raise UseError(f"algorithm must be auto, uls or els, got {self.algorithm!r}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Declared:
    """The privacy budget, and the public constants that the operator declares.

    Args:
        epsilon: of training and of all DP answers before it, as the run's claim counts them;
            earlier runs are added to that, and said.
        population: the declared nominal number of users: a public constant that you choose.
        population_examples: the declared nominal number of examples of all users together; for ELS.
            Without it every user is taken to hold as many as the cap.
        median_examples: the declared median of examples per user: the group size of ELS.
        delta: in (0, 1); by default n^-1.1 of the declared --population-examples or --population.
        query_share: the share of epsilon set aside for DP answers, fixed before the first of them;
            by default exactly what the answers so far cost.
        unsafe_exact_counts: read the store's exact counts. The plan and the report then say that it
            was chosen from non-private statistics: no epsilon covers that choice.
    """

    epsilon: float
    population: int | None = None
    population_examples: int | None = None
    median_examples: int | None = None
    delta: float | None = None
    query_share: float | None = None
    unsafe_exact_counts: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """On what hardware a plan is to run, for a prediction of time, memory and money.

    Args:
        hardware: of the run, such as h100x8: a100, h100, h200, l4, l40s or cpu, and how many. What
            is printed of it is a prediction, from public figures and the shapes of --model.
        device_hours: in place of --budget: B is what a run of so many hours of one device (eight
            devices for an hour are eight) is predicted to buy.
        price_per_hour: of one device, in any currency: your contract's; no price is built in.
        micro_batch: as for userdp train: most examples in one pass.
        lora_rank: as for userdp train: adapters of this rank are trained.
    """

    hardware: str | None = None
    device_hours: float | None = None
    price_per_hour: float | None = None
    micro_batch: int = 32
    lora_rank: int | None = None

    def __post_init__(self) -> None:
        require_count("micro_batch", self.micro_batch)
        if self.lora_rank is not None:
            require_count("lora_rank", self.lora_rank, at_most=10**4)
        for name in ("device_hours", "price_per_hour"):
            value = getattr(self, name)
            if value is None:
                continue
            require_positive(name, value)
            if self.hardware is None:
                raise UseError(
                    f"{name} says nothing without the hardware that the hours are of",
                    hint="add --hardware h100x8",
                )
