"""``userdp.account``: the (ε, δ) of a mechanism or of a ledger, or the least noise for a budget."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from userdp.accounting.accountants import Accountant, calibrate, epsilon_by
from userdp.accounting.bracket import Bracket
from userdp.claims import Claim
from userdp.commands.answers import ASIDE, INNER, Answer
from userdp.commands.setting import Section, read, refuse, samplings
from userdp.core.clip import Clip
from userdp.core.codec import encode
from userdp.core.errors import UseError, warn
from userdp.core.hints import one_of
from userdp.core.vocabulary import PrivacyUnit, require_count
from userdp.noise import Gaussian
from userdp.plans.resolved import constants_of, require_said
from userdp.plans.small_delta import require_small_delta
from userdp.sampling import SAMPLINGS, Sampling

AccountantName = Literal["contour", "rdp", "group-privacy", "group-privacy-vadhan", "dp-accounting"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Priced(Answer):
    """What a mechanism or a ledger costs.

    Args:
        values: by name: ε, δ, the mechanism, and what was asked for beside.
        claim: of a ledger.
    """

    values: Mapping[str, Any] = field(metadata=INNER)
    claim: Claim | None = field(default=None, metadata=ASIDE)


def account(
    *,
    ledger: str | os.PathLike[str] | None = None,
    sampling: str | None = None,
    sampling_probability: float | None = None,
    group_size: int | None = None,
    steps: int | None = None,
    noise_multiplier: float | None = None,
    delta: float | None = None,
    epsilon: float | None = None,
    population: int | None = None,
    accountant: AccountantName | None = None,
    proof: bool = False,
    settings: Sequence[str] = (),
) -> Priced:
    """Price a mechanism or a ledger, or find the least noise.

    No data is read. Noise and delta give epsilon, noise and epsilon give delta, epsilon and delta
    give the least noise. A mechanism is priced with exact Gaussian noise; a ledger as it ran: the
    distance of its noise from a Gaussian is included, which moves no printed digit of an ordinary
    epsilon (docs/accounting.md).

    Example::

        userdp account --sampling-probability 0.01 --steps 1000 --delta 1e-6 --noise-multiplier 1

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
        proof: also prove the epsilon by ball arithmetic (needs the extra ``proof``): it encloses
            delta there once more, and fails if the accountant is contradicted.
        settings: a further constant of the sampling, as sampling.batch_size=64.

    Raises:
        UseError: something is missing, is said twice or says nothing.
    """
    own = {"sampling_probability": sampling_probability, "group_size": group_size}
    constants = {name: one for name, one in own.items() if one is not None}
    constants |= read(settings, sections())["sampling"]
    of_mechanism = (sampling, population, epsilon, noise_multiplier, steps, *constants.values())
    refuse({
        "--ledger says it all: leave the options of a mechanism out": ledger is not None
        and any(one is not None for one in of_mechanism),
    })  # fmt: skip
    if ledger is not None:
        return _of_ledger(Path(ledger), delta, accountant, proof=proof)
    law = _sampling({"kind": sampling or "users", **constants}, population)
    require_said({"steps": steps}, why="epsilon depends on it")
    noise = Gaussian(multiplier=1.0 if noise_multiplier is None else noise_multiplier)
    mechanism = law.price(noise, Clip(l2_norm=1.0), require_count("steps", steps or 0))
    refuse({
        "account needs two of --noise-multiplier, --delta and --epsilon (or --ledger PATH): the "
        "third is computed": [noise_multiplier, delta, epsilon].count(None) != 1,
        "--accountant computes epsilon, and --epsilon says it: leave one out": accountant
        and delta is None,
    })  # fmt: skip
    if delta is None:
        assert epsilon is not None
        told = _answer(mechanism, mechanism.delta(epsilon), of="delta", at=epsilon, proof=proof)
        return Priced(values=_facts(law, mechanism) | told)
    _warn_of_delta(law, population, delta)
    chosen, goal = Accountant(accountant or "contour"), dict[str, float]()
    if epsilon is not None:
        goal = {"target_epsilon": epsilon}
        mechanism = calibrate(mechanism, **goal, target_delta=delta, accountant=chosen)
    told = _answer(
        mechanism, epsilon_by(chosen, mechanism, delta), of="epsilon", at=delta, proof=proof
    )
    return Priced(values=_facts(law, mechanism) | goal | told)


def sections() -> dict[str, Section]:
    """What ``--set`` reaches."""
    return {"sampling": samplings(without=("group_size", "sampling_probability"))}


def _sampling(constants: dict[str, Any], population: int | None) -> Sampling:
    """The sampling that is described; `UseError` names what is missing or stray."""
    kind, group_size = str(constants.pop("kind")), constants.get("group_size")
    law = SAMPLINGS.get(kind)
    if law is None or not law.covered:
        priced = [kind for kind, one in SAMPLINGS.items() if one.covered]
        raise UseError(f"there is no price of sampling {kind!r}", hint=one_of(kind, priced))
    if law.unit is PrivacyUnit.USER:
        refuse({
            f"--group-size {group_size} has no meaning with --sampling {kind}: a user is clipped "
            "as a whole, so its examples do not change epsilon. Leave it out, or use --sampling "
            "examples": group_size is not None
        })  # fmt: skip
        constants["group_size"] = 1
    if population is not None and "least_population" in law.words.options:
        constants.setdefault("least_population", population)
    return law(**constants_of(law, constants))


def _facts(sampling: Sampling, mechanism: Any) -> dict[str, Any]:
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


def _answer(mechanism: Any, bracket: Bracket, *, of: str, at: float, proof: bool) -> dict[str, Any]:
    """What an accountant says, with a proof where one is asked for.

    Args:
        mechanism: that is priced.
        bracket: the answer.
        of: what it is an answer of: "epsilon", at a delta, or "delta", at an epsilon.
        at: that number.
        proof: see `account`; it fails if the answer is contradicted.
    """
    given = "delta" if of == "epsilon" else "epsilon"
    told: dict[str, Any] = {of: bracket.upper, f"{of}_lower_bound": bracket.lower, given: at}
    told |= {"accountant": bracket.accountant} | ({"note": bracket.note} if bracket.note else {})
    if proof:
        from userdp.accounting.proving import prove_delta, prove_epsilon

        told["proof"] = (prove_epsilon if given == "delta" else prove_delta)(mechanism, at, bracket)
    return told


def _warn_of_delta(law: Sampling, population: int | None, delta: float) -> None:
    if population is not None and delta:
        counted = "users" if law.by_user else "examples"
        warn(require_small_delta(delta, population, counted=counted, allow_large_delta=True))


def _of_ledger(path: Path, delta: float | None, accountant: str | None, *, proof: bool) -> Priced:
    """The claim of a ledger; by another accountant, or with a proof, of one mechanism.

    A sum over several charges, or the price of a choice, has no mechanism that another accountant
    could price.
    """
    from userdp.claims import claim

    claimed = claim(path, delta=delta)
    guarantee, mechanism = claimed.guarantee, claimed.mechanism
    if delta is not None and guarantee.delta == 0:
        why = f"all that {path} charges has delta 0" if claimed.finite else claimed.headline
        raise UseError(f"--delta says nothing here: {why}", hint="leave --delta out")
    if (accountant or proof) and mechanism is None:
        why = "nothing" if math.isinf(guarantee.epsilon) else claimed.composition
        raise UseError(
            f"--accountant and --proof ask of one mechanism, and the claim of {path} is of {why}",
            hint="leave them out, or name the ledger of a single private run",
        )
    own = Bracket(lower=0.0, upper=guarantee.epsilon, accountant=guarantee.accountant)
    bracket = own
    if accountant and mechanism is not None:
        bracket = epsilon_by(Accountant(accountant), mechanism, guarantee.delta)
    told = _answer(mechanism, bracket, of="epsilon", at=guarantee.delta, proof=proof)
    if (plan := claimed.plan) is not None:
        _warn_of_delta(plan.sampling, plan.population, guarantee.delta)
        if accountant:
            told |= _facts(plan.sampling, mechanism)
            second: Any = {"epsilon": bracket.upper, "accountant": bracket.accountant}
            claimed = replace(claimed, guarantee=replace(guarantee, **second))
    if bracket is own:
        del told["epsilon_lower_bound"]
    return Priced(values=claimed.to_dict() | told, claim=claimed)
