"""The options of `account` and `calibrate` that describe a mechanism."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from userdp.cli.output import print_warning
from userdp.errors import UseError

if TYPE_CHECKING:
    from userdp.accounting.mechanisms import FixedGraphExamples, SampledMechanism

AccountantName = Literal["contour", "rdp", "group-privacy", "group-privacy-vadhan", "dp-accounting"]

_NEEDS = {
    "users": ("sampling_probability", "steps"),
    "examples": ("sampling_probability", "group_size", "steps"),
    "fixed-batch": ("batch_size", "population", "steps"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class MechanismOptions:
    """A mechanism, from flags.

    Args:
        sampling: users (ULS), examples (ELS), or fixed-batch (batches of an exact size).
        sampling_probability: q (users) or p (examples), in (0, 1].
        group_size: most examples per user in the training set (examples; fixed-batch: 1 by
            default, where a unit is a user).
        batch_size: units in every step (fixed-batch).
        population: a public lower bound on the units of the smaller data set (fixed-batch).
        steps: noisy updates released; physical micro-batches never count.
    """

    sampling: Literal["users", "examples", "fixed-batch"] | None = None
    sampling_probability: float | None = None
    group_size: int | None = None
    batch_size: int | None = None
    population: int | None = None
    steps: int | None = None


def build_mechanism(options: MechanismOptions, *, noise_multiplier: float) -> SampledMechanism:
    """The mechanism that the options describe; `UseError` names what is missing or stray."""
    from userdp.accounting.mechanisms import FixedBatchExamples, PoissonExamples, PoissonUsers

    if options.sampling is None:
        raise UseError(
            "missing --sampling: a mechanism is not known without",
            hint="use --sampling users, examples or fixed-batch",
        )
    needs = _NEEDS[options.sampling]
    missing = [name for name in needs if getattr(options, name) is None]
    if missing:
        raise UseError(
            f"--sampling {options.sampling} needs {', '.join(map(_flag, missing))}: "
            "epsilon depends on it"
        )
    allowed = {*needs, "sampling"} | (
        {"group_size"} if options.sampling == "fixed-batch" else set()
    )
    stray = [
        name
        for name in MechanismOptions.__slots__
        if name not in allowed and getattr(options, name) is not None
    ]
    if stray == ["group_size"]:
        raise UseError(
            f"--group-size {options.group_size} has no meaning with --sampling users: a user is "
            "clipped as a whole, so its examples do not change epsilon",
            hint="leave --group-size out, or use --sampling examples",
        )
    if stray:
        raise UseError(
            f"{', '.join(map(_flag, stray))} has no meaning with --sampling {options.sampling}"
        )
    values: dict[str, Any] = {name: getattr(options, name) for name in needs if name != "sampling"}
    if options.sampling == "users":
        return PoissonUsers(noise_multiplier=noise_multiplier, **values)
    if options.sampling == "examples":
        return PoissonExamples(noise_multiplier=noise_multiplier, **values)
    group_size = 1 if options.group_size is None else options.group_size
    return FixedBatchExamples(noise_multiplier=noise_multiplier, group_size=group_size, **values)


def judge_delta(
    delta: float, population: int | None, *, sampling: str, allow_large_delta: bool
) -> None:
    """Refuse a δ of 1 over the population or more, if one is known; warn of one above n^-1.1."""
    from userdp.plan.small_delta import require_small_delta

    if population is None or delta == 0:
        return
    counted = sampling if sampling in ("users", "examples") else "units"
    warning = require_small_delta(
        delta, population, counted=counted, allow_large_delta=allow_large_delta
    )
    if warning is not None:
        print_warning(warning)


def describe(mechanism: SampledMechanism | FixedGraphExamples) -> dict[str, Any]:
    """What `account` and `calibrate` print of a mechanism beside ε and δ."""
    from dataclasses import asdict

    from userdp.guarantees import PrivacyUnit

    values = asdict(mechanism)
    values.pop("measured_under", None)  # said by the adjacency
    return {
        **values,
        "group_size": getattr(mechanism, "group_size", 1),
        "unit": str(PrivacyUnit.USER),
        "adjacency": str(mechanism.adjacency),
        "sampling": str(mechanism.sampling),
    }


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
