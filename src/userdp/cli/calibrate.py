"""``userdp calibrate``: the least noise for a budget."""

from __future__ import annotations

from userdp.cli.account import print_table
from userdp.cli.mechanism_options import MechanismSampling, build_mechanism
from userdp.cli.output import emit
from userdp.guarantees import PrivacyUnit


def calibrate(
    *,
    sampling: MechanismSampling,
    sampling_probability: float,
    steps: int,
    target_epsilon: float,
    delta: float,
    group_size: int | None = None,
    json: bool = False,
) -> None:
    """Find the least noise multiplier whose epsilon stays within the budget.

    Args:
        sampling: users (ULS: whole users join a step) or examples (ELS).
        sampling_probability: q (users) or p (examples), in (0, 1].
        steps: noisy updates released; physical micro-batches never count.
        target_epsilon: the budget; greater than 0.
        delta: in (0, 1).
        group_size: most examples per user in the training set (examples sampling).
        json: print one JSON object on stdout.
    """
    from userdp.accounting.calibration import calibrate as least_noise

    start = build_mechanism(
        sampling=sampling,
        sampling_probability=sampling_probability,
        noise_multiplier=1.0,
        steps=steps,
        group_size=group_size,
    )
    mechanism = least_noise(start, target_epsilon=target_epsilon, target_delta=delta)
    bracket = mechanism.epsilon(delta)
    result = {
        "noise_multiplier": mechanism.noise_multiplier,
        "epsilon": bracket.upper,
        "target_epsilon": target_epsilon,
        "delta": delta,
        "sampling_probability": sampling_probability,
        "steps": steps,
        "group_size": start.group_size,
        "unit": str(PrivacyUnit.USER),
        "adjacency": str(mechanism.adjacency),
        "sampling": str(mechanism.sampling),
        "accountant": bracket.accountant,
    }
    emit(result, json=json, render=lambda console: print_table(console, result))
