r"""What a federation costs a subject: ``tight``, and ``paper`` as published.

**tight** (proofs: docs/federated.md). Each silo keeps at most k items of a subject, draws every
item at every step independently with a public p, and divides by public constants. One step of one
silo is then dominated, in clip norms, by N(·, σ²) against N(0, σ²) with shift

==================  ============================  =============================================
LocalItemDP         Bernoulli(p)                  per *item*; per subject as LocalGroupDP
LocalGroupDP        Binomial(k, p)                per subject
HiGradAvgDP         Bernoulli(1 - (1 - p)^k)      per subject
UserLDP             2 Bernoulli(1 - (1 - p)^k)    per subject
UserLDP             2, in every step              per silo, under replacement
==================  ============================  =============================================

and all steps of all silos that hold the subject are composed, every single step counted as if it
were published to an adversary who knows which silos ran.

**paper** reproduces the published noise: the moments accountant (Rényi DP), the group lemma with
the mini-batch's largest group, the sampling fraction kB/|D|, sensitivity C for UserLDP, and fewer
rounds. No ε is claimed for it: `flaws_of` names the steps that are not sound.
"""

from __future__ import annotations

import math
from enum import StrEnum
from functools import lru_cache

from userdp.accounting import (
    Accountant,
    Mixture,
    binomial_steps,
    calibrate,
    calibrate_by,
    gaussian_steps,
)
from userdp.accounting.group_privacy import Conversion, example_target
from userdp.accounting.implemented import ideal_delta_for, implemented_epsilon
from userdp.errors import UseError
from userdp.vocabulary import (
    Adjacency,
    require_count,
    require_delta,
    require_positive,
    require_probability,
)

TightMechanism = Mixture


class Algorithm(StrEnum):
    """The local algorithms of Marathe et al. 2023.

    ``FEDAVG``: no privacy. ``LOCAL_ITEM``: DP-SGD per item in each silo. ``LOCAL_GROUP``:
    Algorithm 1. ``HIGRADAVG``: Algorithm 2. ``USER_LDP``: Algorithm 3.
    """

    FEDAVG = "fedavg"
    LOCAL_ITEM = "local-item-dp"
    LOCAL_GROUP = "local-group-dp"
    HIGRADAVG = "higradavg-dp"
    USER_LDP = "user-ldp"

    @property
    def private(self) -> bool:
        """Whether its steps are noised."""
        return self is not Algorithm.FEDAVG

    @property
    def for_subjects(self) -> bool:
        """Whether its noise is meant to protect subjects; that of LocalItemDP protects items."""
        return self in (Algorithm.LOCAL_GROUP, Algorithm.HIGRADAVG, Algorithm.USER_LDP)


class AccountingName(StrEnum):
    """``TIGHT``: what is claimed. ``PAPER``: as published; nothing is claimed."""

    TIGHT = "tight"
    PAPER = "paper"


class Reduction(StrEnum):
    """By what the paper's rounds are reduced for horizontal composition over s silos a round.

    ``SQRT``: by √s, Theorem 3.13 as published. ``LINEAR``: by s, which is what composes.
    ``NONE``: not at all.
    """

    SQRT = "sqrt"
    LINEAR = "linear"
    NONE = "none"


FLAWS: dict[str, str] = {
    "a": "the noise scale of a step is read off its mini-batch (its largest group Z), and shows "
    "in the variance of the update",
    "b": "the group lemma is applied to a subject's items in the mini-batch; it speaks of the "
    "subject's items in the data set",
    "c": "the noisy sum is divided by the realised number of subjects in the mini-batch",
    "d": "the subject's sampling fraction is kB/|D| with an expected k (Theorem 3.7, whose k q is "
    "k² B/|D|); subjects with more items are drawn more often",
    "e": "UserLDP's sensitivity is taken as C (Lemma 3.9); two clipped gradients differ by up to "
    "2C, and the proof of Theorem 3.11 compares norms where it needs outputs",
    "f": "rounds are reduced by √s (Theorem 3.13) where composition over s silos needs s: "
    "√(T (R/√s) s) is s^(1/4) √(TR)",
    "g": "mini-batches of a fixed size are accounted for as Poisson draws",
}
"""Published steps that are not sound, by the letter that output shows."""

_FLAWS_OF = {
    Algorithm.FEDAVG: "",
    Algorithm.LOCAL_ITEM: "g",
    Algorithm.LOCAL_GROUP: "abg",
    Algorithm.HIGRADAVG: "cdg",
    Algorithm.USER_LDP: "eg",
}


def flaws_of(algorithm: Algorithm, reduction: Reduction) -> tuple[str, ...]:
    """Letters of `FLAWS` that make the ``paper`` accounting of this algorithm unsound.

    >>> flaws_of(Algorithm.LOCAL_GROUP, Reduction.SQRT)
    ('a', 'b', 'f', 'g')
    """
    letters = set(_FLAWS_OF[algorithm])
    if algorithm.for_subjects and reduction is not Reduction.LINEAR:
        letters.add("f")
    return tuple(sorted(letters))


def reduced_rounds(rounds: int, silos_per_round: int, reduction: Reduction) -> int:
    """The rounds that the paper trains, of ``rounds`` that its noise is calibrated for.

    >>> reduced_rounds(100, 16, Reduction.SQRT), reduced_rounds(100, 16, Reduction.LINEAR)
    (25, 6)

    Source: Marathe et al. 2023, Theorem 3.13 and Section 5.1 (25 of 100, 50 of 200 rounds).
    """
    by = {
        Reduction.SQRT: math.sqrt(silos_per_round),
        Reduction.LINEAR: float(silos_per_round),
        Reduction.NONE: 1.0,
    }[reduction]
    return max(1, math.floor(rounds / by))


def subject_probability(sampling_probability: float, group_size: int) -> float:
    """1 - (1 - p)^k, rounded up: the most likely a subject is to be in a step.

    >>> subject_probability(0.5, 2) >= 0.75
    True
    """
    p = require_probability("sampling_probability", sampling_probability)
    k = require_count("group_size", group_size)
    if p == 1:
        return 1.0
    return min(1.0, -math.expm1(k * math.log1p(-p)) * (1 + 1e-14))


def subject_mechanism(
    algorithm: Algorithm,
    *,
    sampling_probability: float,
    group_size: int,
    noise_multiplier: float,
    steps: int,
) -> Mixture:
    """The pair that dominates ``steps`` local steps for a subject, whichever silos ran them.

    Guarantee: under ``tight`` conditions (cap of ``group_size`` items per subject and silo, Poisson
    draws, public denominators) removing a subject from all silos is no easier to notice than this
    mechanism. LocalItemDP's steps are LocalGroupDP's with less noise, and are priced so.

    Args:
        algorithm: a private one.
        sampling_probability: p of each item, in (0, 1].
        group_size: k, most items of a subject in a silo.
        noise_multiplier: σ, noise standard deviation over the clip norm.
        steps: local steps of all silos that hold the subject.

    Raises:
        UseError: an algorithm without noise, or a parameter out of range.

    Source: docs/federated.md, Propositions 1 to 3.
    """
    if not algorithm.private:
        raise UseError(
            "fedavg adds no noise: it has no price", hint="choose one of the private algorithms"
        )
    if algorithm in (Algorithm.LOCAL_ITEM, Algorithm.LOCAL_GROUP):
        return binomial_steps(
            sampling_probability=sampling_probability,
            group_size=group_size,
            noise_multiplier=noise_multiplier,
            steps=steps,
        )
    # N(2 Bern, σ²) is N(Bern, (σ/2)²) in other units.
    shift = 2 if algorithm is Algorithm.USER_LDP else 1
    return binomial_steps(
        sampling_probability=subject_probability(sampling_probability, group_size),
        noise_multiplier=noise_multiplier / shift,
        steps=steps,
    )


def item_mechanism(*, sampling_probability: float, noise_multiplier: float, steps: int) -> Mixture:
    """The pair for one item, which lies in one silo: only that silo's ``steps`` count."""
    return binomial_steps(
        sampling_probability=sampling_probability, noise_multiplier=noise_multiplier, steps=steps
    )


def silo_mechanism(*, noise_multiplier: float, steps: int) -> Mixture:
    """UserLDP for a whole silo under replacement: μ = 2 √steps / σ.

    Source: docs/federated.md, Proposition 4; in place of Marathe et al. 2023, Theorem 3.10.
    """
    return gaussian_steps(
        shift=2.0,
        noise_multiplier=noise_multiplier,
        steps=steps,
        adjacency=Adjacency.REPLACE,
    )


def tight_noise(
    algorithm: Algorithm,
    *,
    sampling_probability: float,
    group_size: int,
    steps: int,
    target_epsilon: float,
    target_delta: float,
) -> float:
    """The least σ at which ``steps`` steps stay within the budget.

    For LocalItemDP the budget is an item's, and ``steps`` those of one silo; for all others it is a
    subject's, and ``steps`` those of all silos that may hold it.

    Raises:
        UseError: a parameter is out of range, or no noise is enough.
    """
    mechanism: Mixture
    if algorithm is Algorithm.LOCAL_ITEM:
        mechanism = item_mechanism(
            sampling_probability=sampling_probability, noise_multiplier=1.0, steps=steps
        )
    else:
        mechanism = subject_mechanism(
            algorithm,
            sampling_probability=sampling_probability,
            group_size=group_size,
            noise_multiplier=1.0,
            steps=steps,
        )
    found = calibrate(
        mechanism,
        target_epsilon=target_epsilon,
        target_delta=ideal_delta_for(target_epsilon, target_delta, steps=steps),
    )
    return found.noise_multiplier * (2 if algorithm is Algorithm.USER_LDP else 1)


def paper_noise(
    algorithm: Algorithm,
    *,
    batch_fraction: float,
    group_size: int,
    steps: int,
    target_epsilon: float,
    target_delta: float,
) -> float:
    """The published noise multiplier; it supports no claim (`flaws_of`).

    Args:
        algorithm: a private one.
        batch_fraction: B/|D_i|, in (0, 1].
        group_size: LocalGroupDP: Z, the largest group in the mini-batch. HiGradAvgDP: k of the
            fraction kB/|D_i|. Says nothing otherwise.
        steps: T·R of one silo, before rounds are reduced.
        target_epsilon: ε.
        target_delta: δ.

    Source: Marathe et al. 2023, Section 3.1 (σ_Z from ε/Z and δ/(Z e^{(Z-1)ε/Z})), Section 3.2,
    Theorem 3.10. Theorem 3.11's further condition is `theorem_3_11_noise`.
    """
    require_probability("batch_fraction", batch_fraction)
    require_count("group_size", group_size)
    if not algorithm.private:
        raise UseError("fedavg adds no noise: it has no price")
    epsilon, delta, fraction = target_epsilon, target_delta, batch_fraction
    if algorithm is Algorithm.LOCAL_GROUP and group_size > 1:
        epsilon, delta = group_target(target_epsilon, target_delta, group_size)
    elif algorithm is Algorithm.HIGRADAVG:
        fraction = min(1.0, group_size * batch_fraction)
    elif algorithm is Algorithm.USER_LDP:
        fraction = 1.0
    return _moments_noise(fraction, steps, epsilon, delta)


def group_target(epsilon: float, delta: float, group_size: int) -> tuple[float, float]:
    """(ε/Z, δ/(Z e^{(Z-1)ε/Z})): what the paper asks of an item for a group of Z (Definition 3.3).

    >>> group_target(4.0, 1e-5, 2) == (2.0, 1e-5 / (2 * math.exp(2.0)))
    True
    """
    require_positive("epsilon", epsilon)
    require_delta(delta)
    share = epsilon / require_count("group_size", group_size)
    return share, delta / (group_size * math.exp((group_size - 1) * share))


def best_group_target(epsilon: float, delta: float, group_size: int) -> tuple[float, float]:
    """As `group_target` by the best lemma of this form, for comparison."""
    found = example_target(epsilon, delta, group_size, Conversion.BEST)
    return found.epsilon, found.delta


@lru_cache(maxsize=4096)
def _moments_noise(fraction: float, steps: int, epsilon: float, delta: float) -> float:
    mechanism = binomial_steps(sampling_probability=fraction, noise_multiplier=1.0, steps=steps)
    return calibrate_by(
        Accountant.RDP, mechanism, target_epsilon=epsilon, target_delta=delta
    ).noise_multiplier


def theorem_3_11_noise(epsilon: float, delta: float) -> float:
    """1/(√(2π) ε δ e^ε), the further condition of Theorem 3.11; its proof is flaw (e).

    The published experiments can hardly have met it: it is 183 at ε = 4, δ = 1e-5. It is shown and
    not used.
    """
    require_positive("epsilon", epsilon)
    require_delta(delta)
    return 1 / (math.sqrt(2 * math.pi) * epsilon * delta * math.exp(epsilon))


def epsilon_of(mechanism: TightMechanism, delta: float) -> tuple[float, str]:
    """(ε as an upper bound, accountant) of a ``tight`` mechanism as it runs.

    The distance of its noise from a Gaussian is part of it (`userdp.accounting.implemented`).
    """
    bracket = implemented_epsilon(mechanism.epsilon, delta, steps=mechanism.steps)
    return bracket.upper, bracket.accountant
