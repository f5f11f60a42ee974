"""The options of `account` and `calibrate` that describe a mechanism."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from userdp.errors import UseError

if TYPE_CHECKING:
    from userdp.accounting.mechanisms import PoissonExamples, PoissonUsers

MechanismSampling = Literal["users", "examples"]


def build_mechanism(
    *,
    sampling: MechanismSampling | None,
    sampling_probability: float | None,
    noise_multiplier: float,
    steps: int | None,
    group_size: int | None,
) -> PoissonUsers | PoissonExamples:
    """The mechanism that the options describe; `UseError` names what is missing."""
    from userdp.accounting.mechanisms import PoissonExamples, PoissonUsers

    missing = [
        name
        for name, value in (
            ("--sampling", sampling),
            ("--sampling-probability", sampling_probability),
            ("--steps", steps),
        )
        if value is None
    ]
    if missing:
        raise UseError(
            f"missing {', '.join(missing)}: a mechanism is not known without",
            hint="see `userdp account --help`",
        )
    assert sampling_probability is not None
    assert steps is not None
    if sampling == "users":
        if group_size not in (None, 1):
            raise UseError(
                f"--group-size {group_size} has no meaning with --sampling users: a user is "
                "clipped as a whole, so its examples do not change epsilon",
                hint="leave --group-size out, or use --sampling examples",
            )
        return PoissonUsers(
            sampling_probability=sampling_probability,
            noise_multiplier=noise_multiplier,
            steps=steps,
        )
    if group_size is None:
        raise UseError(
            "--sampling examples needs --group-size: a user's epsilon grows with the number "
            "of its examples"
        )
    return PoissonExamples(
        sampling_probability=sampling_probability,
        group_size=group_size,
        noise_multiplier=noise_multiplier,
        steps=steps,
    )
