"""``userdp.account``: the (ε, δ) of a mechanism or of a ledger, or the least noise for a budget."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from userdp.accounting.accountants import Accountant, calibrate, epsilon_by
from userdp.accounting.mechanisms import NoisySteps
from userdp.claims import Claim
from userdp.clip import Clip
from userdp.codec import encode
from userdp.commands.answer import Part
from userdp.commands.setting import Section, read, samplings
from userdp.errors import UseError, warn
from userdp.hints import one_of
from userdp.noise import Gaussian
from userdp.plans.resolved import constants_of, require_said
from userdp.plans.small_delta import require_small_delta
from userdp.sampling import SAMPLINGS, Sampling
from userdp.vocabulary import PrivacyUnit, require_count

AccountantName = Literal["contour", "rdp", "group-privacy", "group-privacy-vadhan", "dp-accounting"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Priced:
    """What a mechanism or a ledger costs.

    Args:
        values: by name: ε, δ, the mechanism, and what was asked for beside.
        claim: of a ledger.
    """

    values: Mapping[str, Any]
    claim: Claim | None = None

    def to_dict(self) -> Mapping[str, Any]:
        """What ``userdp account --json`` prints."""
        return self.values


def account(
    *,
    ledger: str | os.PathLike[str] | None = None,
    sampling: str | Sampling | None = None,
    sampling_probability: float | None = None,
    group_size: int | None = None,
    steps: int | None = None,
    noise_multiplier: float | None = None,
    delta: float | None = None,
    epsilon: float | None = None,
    population: int | None = None,
    accountant: AccountantName | None = None,
    curve: bool = False,
    proof: bool = False,
    settings: Sequence[str] = (),
) -> Priced:
    """Compute the (epsilon, delta) of a mechanism or of a ledger, or the least noise for a budget.

    No data is read. Noise and delta give epsilon, noise and epsilon give delta, epsilon and delta
    give the least noise. A mechanism is priced with exact Gaussian noise; a ledger as it ran: the
    distance of its noise from a Gaussian is included, which moves no printed digit of an ordinary
    epsilon (docs/accounting.md).

    Args:
        ledger: a run or store ledger, or the folder that holds one: epsilon is recomputed from it.
        sampling: its kind, users by default.
        sampling_probability: of each user, or of each example, at each step.
        group_size: most examples of a user, where examples are sampled.
        steps: noisy updates released; physical micro-batches never count.
        noise_multiplier: standard deviation of the noise divided by the clip norm.
        delta: in (0, 1); with a ledger, each run's own by default.
        epsilon: the budget; or, beside the noise, where delta is asked for.
        population: the declared number of units: a bound on the store for sampling of a fixed size,
            and what delta is judged by.
        accountant: contour (certified, exact; the default), or a second opinion. With a ledger: of
            the steps that it charges, in place of the plan's own.
        curve: also the whole delta(epsilon) curve, and the largest true positive rate that any
            attack can have, by contour. With a ledger: where one mechanism is all of the claim.
        proof: also prove the epsilon by ball arithmetic (needs the extra ``proof``): it encloses
            delta there once more, and fails if the accountant is contradicted.
        settings: a further constant of the sampling, as sampling.batch_size=64.

    Raises:
        UseError: something is missing, is said twice or says nothing.
    """
    if accountant not in (None, "contour") and curve:
        raise UseError(
            f"--curve is computed by contour, not by --accountant {accountant}",
            hint="leave --accountant out, or ask for it by itself",
        )
    constants = read(settings, sections())["sampling"]
    own = {"sampling_probability": sampling_probability, "group_size": group_size}
    constants |= {name: value for name, value in own.items() if value is not None}
    law: Sampling | None
    mechanism: NoisySteps | None
    claimed, told = None, dict[str, Any]()
    if ledger is not None:
        beside = (sampling, population, epsilon, noise_multiplier, steps, *constants.values())
        if any(one is not None for one in beside):
            raise UseError("--ledger says it all: leave the options of a mechanism out")
        claimed = _of_ledger(Path(ledger), delta, wanted=bool(accountant or curve or proof))
        told, mechanism, delta = claimed.to_dict(), claimed.mechanism, claimed.guarantee.delta
        law = None if claimed.plan is None else claimed.plan.sampling
        population = None if claimed.plan is None else claimed.plan.population
    else:
        law = _sampling(sampling or "users", constants, population)
        require_said({"steps": steps}, why="epsilon depends on it")
        mechanism = law.price(
            Gaussian(multiplier=1.0 if noise_multiplier is None else noise_multiplier),
            Clip(l2_norm=1.0),
            require_count("steps", steps or 0),
        )
        if [noise_multiplier, delta, epsilon].count(None) != 1:
            raise UseError(
                "account needs two of --noise-multiplier, --delta and --epsilon (or --ledger "
                "PATH): the third is computed"
            )
    if law is not None and population is not None and delta:
        counted = "users" if law.by_user else "examples"
        warn(require_small_delta(delta, population, counted=counted, allow_large_delta=True))
    if mechanism is not None and law is not None and (claimed is None or accountant):
        chosen = Accountant(accountant or "contour")
        if delta is None:
            assert epsilon is not None
            if curve or accountant:
                raise UseError("--epsilon with a noise goes with a mechanism and --proof only")
            return Priced(values=_facts(law, mechanism) | _delta_at(mechanism, epsilon, proof))
        if epsilon is not None:
            mechanism = calibrate(
                mechanism, target_epsilon=epsilon, target_delta=delta, accountant=chosen
            )
            told = {"target_epsilon": epsilon}
        bracket = epsilon_by(chosen, mechanism, delta)
        told = {
            **_facts(law, mechanism),
            **told,
            "epsilon": bracket.upper,
            "epsilon_lower_bound": bracket.lower,
            "delta": delta,
            "accountant": bracket.accountant,
            **({"note": bracket.note} if bracket.note else {}),
        }
        if claimed is not None:
            guarantee = replace(
                claimed.guarantee, epsilon=bracket.upper, accountant=bracket.accountant
            )
            claimed = replace(claimed, guarantee=guarantee)
            told["headline"] = claimed.headline
    if curve:
        told["curve"] = _curve(mechanism)
    if proof:
        told["proof"] = _proof_of_epsilon(mechanism, told)
    return Priced(values=told, claim=claimed)


def sections() -> dict[str, Section]:
    """What ``--set`` reaches."""
    return {"sampling": samplings(without=("group_size", "sampling_probability"))}


def _sampling(
    sampling: str | Sampling, constants: dict[str, Any], population: int | None
) -> Sampling:
    """The sampling that is described; `UseError` names what is missing or stray."""
    if isinstance(sampling, Sampling):
        return sampling
    kind = str(constants.get("kind", sampling))
    law = SAMPLINGS.get(kind)
    if law is None or not law.covered:
        priced = [kind for kind, one in SAMPLINGS.items() if one.covered]
        raise UseError(f"there is no price of sampling {kind!r}", hint=one_of(kind, priced))
    constants = {name: value for name, value in constants.items() if name != "kind"}
    if law.unit is PrivacyUnit.USER:
        if "group_size" in constants:
            raise UseError(
                f"--group-size {constants['group_size']} has no meaning with --sampling {kind}: a "
                "user is clipped as a whole, so its examples do not change epsilon",
                hint="leave --group-size out, or use --sampling examples",
            )
        constants["group_size"] = 1
    if population is not None and "least_population" in law.words.options:
        constants = {"least_population": population} | constants
    return law(**constants_of(law, constants))


def _facts(sampling: Sampling, mechanism: NoisySteps) -> dict[str, Any]:
    """What is printed of a mechanism beside ε and δ."""
    values = encode(sampling)
    return {
        "noise_multiplier": mechanism.noise_multiplier,
        "steps": mechanism.steps,
        **{name: value for name, value in values.items() if name != "kind"},
        "group_size": sampling.items,
        "unit": "user",
        "adjacency": str(sampling.adjacency),
        "sampling": sampling.kind,
    }


def _of_ledger(path: Path, delta: float | None, *, wanted: bool) -> Claim:
    """The claim of a ledger; `UseError` if it is not of one mechanism, where one is ``wanted``.

    A sum over several charges, or the price of a choice, has no mechanism whose curve could be
    drawn, or that another accountant could price.
    """
    from userdp.claims import claim
    from userdp.claims.verify import is_run, require_released_files
    from userdp.ledger import RunRecord
    from userdp.ledger.folder import LEDGER

    folder = path.parent if path.name == LEDGER else path
    claimed = claim(path, delta=delta)
    if claimed.subject == "run" and is_run(folder):
        require_released_files(RunRecord.read(folder))
    if delta is not None and claimed.guarantee.delta == 0:
        why = f"all that {path} charges has delta 0" if claimed.finite else claimed.headline
        raise UseError(f"--delta says nothing here: {why}", hint="leave --delta out")
    if wanted and claimed.mechanism is None:
        why = "nothing" if math.isinf(claimed.guarantee.epsilon) else claimed.composition
        raise UseError(
            "--accountant, --curve and --proof ask of one mechanism, and the claim "
            f"of {path} is of {why}",
            hint="leave them out, or name the ledger of a single private run",
        )
    return claimed


def _curve(mechanism: Any) -> dict[str, list[float]]:
    from userdp.accounting.tradeoff import delta_curve

    rates = [1e-4, 1e-3, 0.01, 0.05, 0.1, 0.25, 0.5]
    curve = delta_curve(lambda epsilon: float(mechanism.delta(epsilon).upper))
    return {
        "epsilon": list(curve.epsilons),
        "delta": list(curve.deltas),
        "false_positive_rate": rates,
        "largest_true_positive_rate": [curve.max_true_positive_rate(rate) for rate in rates],
    }


def _proof_of_epsilon(mechanism: Any, told: Mapping[str, Any]) -> dict[str, Any]:
    """The proof of the ε at its δ; raises where it contradicts the accountant."""
    from userdp.accounting.bracket import Bracket
    from userdp.accounting.claims import prove_epsilon

    bracket = Bracket(
        lower=float(told.get("epsilon_lower_bound", 0.0)),
        upper=float(told["epsilon"]),
        accountant=str(told["accountant"]),
    )
    return prove_epsilon(mechanism, float(told["delta"]), bracket)


def _delta_at(mechanism: Any, epsilon: float, proof: bool) -> dict[str, Any]:
    """δ at a given ε by the contour accountant, and by ball arithmetic where ``proof`` is asked."""
    from userdp.accounting.claims import prove_delta

    bracket = mechanism.delta(epsilon)
    return {
        "delta": bracket.upper,
        "delta_lower_bound": bracket.lower,
        "epsilon": epsilon,
        "accountant": bracket.accountant,
        **({"proof": prove_delta(mechanism, epsilon, bracket)} if proof else {}),
    }


def in_words(priced: Priced) -> Iterator[Part]:
    """Names and values, the claim of a ledger, then lists as tables of their own."""
    told = priced.values
    apart = ("headline", "standing", "epsilon_so_far")
    yield {
        name: value
        for name, value in told.items()
        if name not in apart and not isinstance(value, dict | list)
    }
    if priced.claim is not None:
        yield priced.claim
    if "proof" in told:
        yield told["proof"]
    if "curve" in told:
        curve = told["curve"]
        for names in (("epsilon", "delta"), ("false_positive_rate", "largest_true_positive_rate")):
            points = list(zip(*(curve[name] for name in names), strict=True))
            yield [dict(zip(names, one, strict=True)) for one in points[:: 1 + len(points) // 9]]
