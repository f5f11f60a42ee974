"""The options of `account` and `calibrate` that describe a mechanism."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from userdp.cli.output import print_warning
from userdp.cli.sampling_options import (
    Options,
    chosen_sampling,
    constants_of,
    options_class,
    require_options,
)
from userdp.clip import Clip
from userdp.codec import encode
from userdp.errors import UseError
from userdp.noise import Gaussian
from userdp.sampling import Sampling
from userdp.vocabulary import PrivacyUnit, require_count

AccountantName = Literal["contour", "rdp", "group-privacy", "group-privacy-vadhan", "dp-accounting"]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Steps:
    """What a mechanism is beside its sampling.

    Args:
        steps: noisy updates released; physical micro-batches never count.
    """

    steps: int | None = None


if TYPE_CHECKING:
    from userdp.accounting.mechanisms import NoisySteps

    MechanismOptions = Options
else:
    MechanismOptions = options_class(
        "MechanismOptions",
        bases=(_Steps,),
        also={"least_population": ("--population",)},
        priced=True,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Described:
    """A sampling, its noise and steps: what `account` and `calibrate` price and print.

    Args:
        sampling: how each step draws.
        steps: noisy updates.
    """

    sampling: Sampling
    steps: int

    def priced(self, noise_multiplier: float) -> NoisySteps:
        """The mechanism with this noise."""
        noise = Gaussian(multiplier=noise_multiplier)
        return self.sampling.price(noise, Clip(l2_norm=1.0), self.steps)

    def to_dict(self, noise_multiplier: float) -> dict[str, Any]:
        """What is printed of it beside ε and δ."""
        values = encode(self.sampling)
        return {
            "noise_multiplier": noise_multiplier,
            "steps": self.steps,
            **{name: value for name, value in values.items() if name != "kind"},
            "group_size": self.sampling.items,
            "unit": str(PrivacyUnit.USER),
            "adjacency": str(self.sampling.adjacency),
            "sampling": self.sampling.kind,
        }


def build_mechanism(options: MechanismOptions) -> Described:
    """The mechanism that the options describe; `UseError` names what is missing or stray."""
    sampling = chosen_sampling(options, missing="missing --sampling: no mechanism is known")
    by_user = sampling.unit is PrivacyUnit.USER
    if by_user and options.group_size is not None:
        raise UseError(
            f"--group-size {options.group_size} has no meaning with --sampling {sampling.kind}: a "
            "user is clipped as a whole, so its examples do not change epsilon",
            hint="leave --group-size out, or use --sampling examples",
        )
    require_options({"steps": options.steps}, why="epsilon depends on it")
    values = constants_of(options, sampling, without=("group_size",) if by_user else ())
    return Described(
        sampling=sampling(**({"group_size": 1} if by_user else {}), **values),
        steps=require_count("steps", options.steps),
    )


def judge_delta(
    delta: float, population: int | None, *, sampling: Sampling, allow_large_delta: bool
) -> None:
    """Refuse a δ of 1 over the population or more, if one is known; warn of one above n^-1.1."""
    from userdp.plans.small_delta import require_small_delta

    if population is None or delta == 0:
        return
    counted = "users" if sampling.by_user else "examples"
    print_warning(
        require_small_delta(delta, population, counted=counted, allow_large_delta=allow_large_delta)
    )
