"""``userdp.account``: the (ε, δ) of a mechanism or of a ledger, or the least noise for a budget."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

from userdp.accounting.accountants import Accountant, calibrate, epsilon_by
from userdp.claims import Claim
from userdp.commands.arguments import SamplingFields, Section, refuse
from userdp.core.codec import encode
from userdp.core.errors import (
    UseError,
    one_of,
    warn,
)
from userdp.core.vocabulary import PrivacyUnit, require_count
from userdp.plans.resolve_plan import constants_of, require_said
from userdp.plans.small_delta import plan_with_small_delta, require_small_delta
from userdp.sampling import SAMPLINGS, Sampling

AccountantName = Literal["contour", "rdp", "group-privacy", "group-privacy-vadhan", "dp-accounting"]


def sections() -> dict[str, Section]:
    """All that ``--set`` reaches."""
    return {"sampling": Section(of=SamplingFields)}


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
    **constants: Annotated[Any, sections],
) -> Claim | dict[str, Any]:
    """Price a mechanism or a ledger, or find the least noise.

    No data is read. Noise and delta give epsilon, noise and epsilon give delta, epsilon and delta
    give the least noise. A mechanism is priced with exact Gaussian noise; a ledger as it ran: the
    distance of its noise from a Gaussian is included, which moves no printed digit of an ordinary
    epsilon (docs/accounting.md).

    Example::

        userdp account --sampling-probability 0.01 --steps 1000 --delta 1e-6 --noise-multiplier 1

    Args:
        ledger: a run or store ledger, or the folder of a run, a store or a federation: epsilon is
            recomputed from the ledgers that lie there.
        sampling: its kind, users by default.
        sampling_probability: of each user, or of each example, at each step.
        group_size: most examples of a user, where examples are sampled.
        steps: noisy updates released; physical micro-batches never count.
        noise_multiplier: standard deviation of the noise divided by the clip norm.
        delta: in (0, 1); with a ledger, each run's own by default.
        epsilon: the budget; or, beside the noise, where delta is asked for.
        population: the declared number of units: a bound on the store for sampling of a fixed size,
            and what delta is judged by.
        accountant: contour (certified, exact; the default), or a second opinion.
        proof: also prove the epsilon by ball arithmetic (needs the extra ``proof``): it encloses
            delta there once more, and fails if the accountant is contradicted.
        constants: others of the sampling, as ``batch_size``.

    Returns:
        The claim of the ledger; or epsilon and delta of the mechanism, and what it is, by name.

    Raises:
        UseError: something is missing, is said twice or says nothing.
    """
    own = {"kind": sampling, "group_size": group_size, "sampling_probability": sampling_probability}
    said = {name: one for name, one in own.items() if one is not None}
    if twice := said.keys() & constants.keys():
        raise UseError(f"sampling.{min(twice)} is given twice")
    constants |= said
    if ledger is not None:
        options = (steps, noise_multiplier, epsilon, population, accountant, *constants.values())
        if proof or any(one is not None for one in options):
            raise UseError("--ledger says it all: of the other options only --delta fits it")
        return _claimed(Path(ledger), delta)
    law = _sampling(constants, population)
    require_said({"steps": steps}, why="epsilon depends on it")
    refuse({
        "account needs two of --noise-multiplier, --delta and --epsilon (or --ledger PATH): the "
        "third is computed": [noise_multiplier, delta, epsilon].count(None) != 1,
        "--accountant computes epsilon, and --epsilon says it: leave one out": accountant
        and delta is None,
    })  # fmt: skip
    sigma = 1.0 if noise_multiplier is None else noise_multiplier
    mechanism = law.price(sigma, require_count("steps", steps or 0))
    goal: dict[str, float] = {}
    if delta is None:
        assert epsilon is not None
        of, given, at, bracket = "delta", "epsilon", epsilon, mechanism.delta(epsilon)
    else:
        if population is not None:
            counted = "users" if law.by_user else "examples"
            warn(require_small_delta(delta, population, counted=counted, allow_large_delta=True))
        by = Accountant(accountant or "contour")
        if epsilon is not None:
            goal = {"target_epsilon": epsilon}
            mechanism = calibrate(mechanism, **goal, target_delta=delta, accountant=by)
        of, given, at, bracket = "epsilon", "delta", delta, epsilon_by(by, mechanism, delta)
    priced = {
        "noise_multiplier": mechanism.noise_multiplier,
        "steps": mechanism.steps,
        **{name: value for name, value in encode(law).items() if name != "kind"},
        "group_size": law.items,
        "unit": "user",
        "adjacency": str(law.adjacency),
        "sampling": law.kind,
        of: bracket.upper,
        f"{of}_lower_bound": bracket.lower,
        given: at,
        **goal,
        "accountant": bracket.accountant,
    }
    if bracket.note:
        priced["note"] = bracket.note
    if proof:
        from userdp.accounting.check_by_proof import prove_delta, prove_epsilon

        prove = prove_delta if delta is None else prove_epsilon
        priced["proof"] = prove(mechanism, at, bracket)
    return priced


def _sampling(constants: dict[str, Any], population: int | None) -> Sampling:
    """The described sampling; `UseError` names what is missing or stray."""
    kind, group_size = str(constants.pop("kind", "users")), constants.get("group_size")
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


def _claimed(ledger: Path, delta: float | None) -> Claim:
    """The claim of a ledger; `UseError` of a delta where nothing has one."""
    from userdp.claims import claim
    from userdp.federated.federation_plan import PLAN_FILE, claim_of

    if (ledger / PLAN_FILE).exists():
        refuse({"a federation has a delta of its own: leave --delta out": delta is not None})
        return claim_of(ledger)
    claimed = claim(ledger, delta=delta)
    if delta is not None and claimed.guarantee.delta == 0:
        why = f"all that {ledger} charges has delta 0" if claimed.finite else claimed.headline
        raise UseError(f"--delta says nothing here: {why}", hint="leave --delta out")
    if claimed.plan is not None:
        warn(plan_with_small_delta(claimed.plan, total_delta=delta or 0.0, allow_large_delta=True))
    return claimed
