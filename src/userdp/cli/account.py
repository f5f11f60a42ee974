"""``userdp account``: the (ε, δ) of a mechanism, or of what a ledger says was run."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from userdp.cli.claims import claim_parts
from userdp.cli.mechanism_options import (
    AccountantName,
    Described,
    MechanismOptions,
    build_mechanism,
    judge_delta,
)
from userdp.cli.output import Answer
from userdp.errors import UseError
from userdp.reporting.table import Table
from userdp.sampling import Sampling
from userdp.vocabulary import delta_up, round_up

if TYPE_CHECKING:
    from userdp.accounting.bracket import Bracket
    from userdp.claims import Claim


def account(
    *,
    options: Annotated[MechanismOptions | None, Parameter(name="*", group="Mechanism")] = None,
    noise_multiplier: float | None = None,
    delta: float | None = None,
    epsilon: float | None = None,
    accountant: AccountantName | None = None,
    ledger: Path | None = None,
    allow_large_delta: bool = False,
    by_examples: bool = False,
    curve: bool = False,
    proof: bool = False,
) -> Answer:
    """Compute the (epsilon, delta) of a mechanism or of a ledger; reads no data.

    A mechanism is priced with exact Gaussian noise. A ledger is priced as it ran: the distance of
    its noise from a Gaussian is included, which moves no printed digit of an ordinary epsilon
    (docs/accounting.md).

    Args:
        options: see MechanismOptions.
        noise_multiplier: standard deviation of the noise divided by the clip norm.
        delta: in (0, 1); with --ledger, each run's own by default.
        epsilon: in place of delta: compute the delta at this epsilon, by contour.
        accountant: contour (certified, exact; the default), or a second opinion. With --ledger: of
            the steps that it charges, in place of the plan's own accountant.
        ledger: a run or store ledger, or the folder that holds one; epsilon is recomputed from it.
        allow_large_delta: answer even where --delta is not below 1 over the population of the
            mechanism or, with --ledger, of its plan.
        by_examples: also print the epsilon of users who hold fewer examples than the cap, by
            contour.
        curve: also print the whole delta(epsilon) curve, and the largest true positive rate that
            any attack can have, by contour. With --ledger: where one mechanism is all of the claim.
        proof: also prove the epsilon by ball arithmetic (needs the extra ``proof``): it encloses
            delta there once more, and fails if the accountant is contradicted.
    """
    from userdp.accounting.accountants import Accountant, epsilon_by

    if accountant not in (None, "contour") and (curve or by_examples):
        raise UseError(
            f"--curve and --by-examples are computed by contour, not by --accountant {accountant}",
            hint="leave --accountant out, or ask for them by themselves",
        )
    claimed: Claim | None = None
    if epsilon is not None:
        if delta is not None or ledger or by_examples or curve or accountant or allow_large_delta:
            raise UseError("--epsilon goes with a mechanism, its noise and --proof only")
        if noise_multiplier is None:
            raise UseError("account needs --noise-multiplier: without it there is no delta")
        described = build_mechanism(options or MechanismOptions())
        at_epsilon = _delta_at(described.priced(noise_multiplier), epsilon, proof=proof)
        return priced_answer({**at_epsilon, **described.to_dict(noise_multiplier)})
    if ledger is not None:
        if options is not None or noise_multiplier is not None:
            raise UseError("--ledger says it all: leave the options of a mechanism out")
        claimed = _of_ledger(
            ledger, delta, wanted=bool(accountant or curve or by_examples or proof)
        )
        result, priced, population = claimed.to_dict(), claimed.mechanism, None
        if claimed.plan is not None:
            described = Described(sampling=claimed.plan.sampling, steps=claimed.plan.steps)
            population = claimed.plan.population
        # The ledger's own δ was judged when its run began: of that there is only a warning.
        allow_large_delta = allow_large_delta or delta is None
        delta = float(result["delta"])
    elif noise_multiplier is None or delta is None:
        raise UseError(
            "account needs --noise-multiplier and --delta (or --ledger PATH): "
            "without them there is no epsilon to compute"
        )
    else:
        options = options or MechanismOptions()
        described = build_mechanism(options)
        priced = described.priced(noise_multiplier)
        accountant, result, population = accountant or "contour", {}, options.least_population
    if priced is not None:
        judge_delta(
            delta, population, sampling=described.sampling, allow_large_delta=allow_large_delta
        )
    if accountant is not None:
        assert priced is not None
        bracket = epsilon_by(Accountant(accountant), priced, delta)
        result = {
            "epsilon": bracket.upper,
            "epsilon_lower_bound": bracket.lower,
            "delta": delta,
            **described.to_dict(priced.noise_multiplier),
            **{key: value for key, value in result.items() if key not in ("epsilon", "delta")},
            "accountant": bracket.accountant,
        }
        if claimed is not None:
            claimed = _by_another(claimed, bracket)
            result["headline"] = claimed.headline
        if bracket.note:
            result["note"] = bracket.note
    if by_examples:
        result["epsilon_by_examples"] = _by_examples(priced, described.sampling, delta)
    if curve:
        result["curve"] = _curve(priced)
    if proof:
        result["proof"] = _proof_of_epsilon(priced, result)
    return priced_answer(result, claimed)


def _of_ledger(path: Path, delta: float | None, *, wanted: bool) -> Claim:
    """The claim of a ledger; `UseError` if it is not of one mechanism, where one is ``wanted``.

    A sum over several charges, or the price of a choice, has no mechanism whose curve could be
    drawn, or that another accountant could price.
    """
    from userdp.claims import claim
    from userdp.claims.verify import is_run, require_released_files
    from userdp.ledger import RunFolder
    from userdp.ledger.folder import LEDGER

    folder = path.parent if path.name == LEDGER else path
    claimed = claim(path, delta=delta)
    if claimed.subject == "run" and is_run(folder):
        require_released_files(RunFolder(folder))
    if delta is not None and claimed.guarantee.delta == 0:
        why = f"all that {path} charges has delta 0" if claimed.finite else claimed.headline
        raise UseError(
            f"--delta says nothing here: {why}",
            hint="leave --delta out",
        )
    if wanted and claimed.mechanism is None:
        why = "nothing" if math.isinf(claimed.guarantee.epsilon) else claimed.composition
        raise UseError(
            "--accountant, --curve, --by-examples and --proof ask of one mechanism, and the claim "
            f"of {path} is of {why}",
            hint="leave them out, or name the ledger of a single private run",
        )
    return claimed


def _by_another(claimed: Claim, bracket: Bracket) -> Claim:
    """A claim of one mechanism, bounded by another accountant."""
    guarantee = replace(
        claimed.guarantee, epsilon=bracket.upper, accountant=str(bracket.accountant)
    )
    return replace(claimed, guarantee=guarantee)


def _by_examples(mechanism: Any, sampling: Sampling, delta: float) -> dict[str, float]:
    from userdp.accounting.holders import epsilon_by_items

    if sampling.by_user:
        raise UseError(
            f"--by-examples has no meaning with --sampling {sampling.kind}, where every user has "
            "the same epsilon"
        )
    return {str(k): bracket.upper for k, bracket in epsilon_by_items(mechanism, delta).items()}


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


def _proof_of_epsilon(mechanism: Any, result: dict[str, Any]) -> dict[str, Any]:
    """The proof of ``result``'s ε at its δ; raises where it contradicts the accountant."""
    from userdp.accounting.bracket import Bracket
    from userdp.accounting.claims import prove_epsilon

    bracket = Bracket(
        lower=float(result.get("epsilon_lower_bound", 0.0)),
        upper=float(result["epsilon"]),
        accountant=str(result["accountant"]),
    )
    return prove_epsilon(mechanism, float(result["delta"]), bracket)


def _delta_at(mechanism: Any, epsilon: float, *, proof: bool) -> dict[str, Any]:
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


def priced_answer(result: dict[str, Any], claimed: Claim | None = None) -> Answer:
    """What `account` and `calibrate` print: names and values, then lists as tables of their own.

    Args:
        result: what is printed under ``--json``.
        claimed: of a ledger: it is told in words too.
    """
    return Answer(values=result, parts=_parts(result, claimed))


def _parts(result: dict[str, Any], claimed: Claim | None) -> Iterator[Table | str]:
    told_apart = ("headline", "standing", "epsilon_so_far")
    single = {
        key: value
        for key, value in result.items()
        if not isinstance(value, dict | list) and key not in told_apart
    }
    yield Table(
        rows=[(key.replace("_", " "), _shown(key, value)) for key, value in single.items()],
        strong=[list(single).index("epsilon")],
    )
    if claimed is not None:
        yield ""
        yield from claim_parts(claimed)
    if "proof" in result:
        yield ""
        yield _proof(result["proof"])
    if "epsilon_by_examples" in result:
        yield ""
        by_examples = result["epsilon_by_examples"].items()
        yield Table(
            columns=("examples of the user", "epsilon"),
            rows=[(held, round_up(epsilon)) for held, epsilon in by_examples],
        )
    if "curve" in result:
        curve = result["curve"]
        points = list(zip(curve["epsilon"], curve["delta"], strict=True))[::8]
        rates = zip(curve["false_positive_rate"], curve["largest_true_positive_rate"], strict=True)
        yield ""
        yield Table(
            columns=("epsilon", "delta"),
            rows=[(round_up(epsilon, 6), delta_up(delta, 4)) for epsilon, delta in points],
        )
        yield ""
        yield Table(
            columns=("an attack's false positive rate", "its true positive rate, at most"),
            rows=[(f"{false:g}", f"{true:.6f}") for false, true in rates],
        )


def _shown(name: str, value: Any) -> str:
    """A value for people: ε and δ rounded up."""
    if name == "epsilon":
        return round_up(float(value), 6)
    if name == "delta":
        return delta_up(float(value), 8)
    return f"{value:.8g}" if isinstance(value, float) else str(value)


def _proof(proof: dict[str, Any]) -> Table:
    """The claim, whether it is proven, and the enclosure."""
    words = {True: "proven", False: "not proven"}
    rows = [("claim", proof["claim"]), ("proven", words[proof["proven"]])]
    if "why" in proof:
        rows.append(("why", str(proof["why"])))
    if "delta_upper" in proof:
        rows += [
            ("delta there", f"{proof['delta_lower']!r} to {proof['delta_upper']!r}"),
            ("took", f"{proof['seconds']} s at {proof['bits']} bits"),
            ("what is proven", proof["scope"]),
        ]
    if "epsilon_lower_bound" in proof:
        below = proof["epsilon_lower_bound"]
        rows.append(("no smaller epsilon", f"{below['claim']}: {words[below['proven']]}"))
    return Table(caption="proof by ball arithmetic", rows=rows)
