"""``userdp account``: the (ε, δ) of a mechanism, or of what a ledger says was run."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from rich.console import Console
from rich.table import Table

from userdp.cli.account_proof import (
    delta_at,
    print_proof,
    proof_of_epsilon,
)
from userdp.cli.mechanism_options import (
    AccountantName,
    Described,
    MechanismOptions,
    build_mechanism,
    judge_delta,
)
from userdp.cli.output import emit
from userdp.errors import UseError
from userdp.sampling import Sampling
from userdp.vocabulary import delta_up, round_up

if TYPE_CHECKING:
    from userdp.ledger import Claim


def account(
    *,
    options: Annotated[MechanismOptions | None, Parameter(name="*")] = None,
    noise_multiplier: float | None = None,
    delta: float | None = None,
    epsilon: float | None = None,
    accountant: AccountantName | None = None,
    ledger: Path | None = None,
    allow_large_delta: bool = False,
    by_examples: bool = False,
    curve: bool = False,
    proof: bool = False,
    json: bool = False,
) -> None:
    """Compute the (epsilon, delta) of a mechanism or of a ledger; reads no data.

    A mechanism is priced with exact Gaussian noise; a ledger as it ran, the noise's distance from
    a Gaussian included, which moves no printed digit of an ordinary epsilon (docs/accounting.md).

    Args:
        options: see MechanismOptions.
        noise_multiplier: standard deviation of the noise divided by the clip norm.
        delta: in (0, 1); with --ledger, each run's own by default.
        epsilon: in place of delta: the delta at this epsilon, by contour.
        accountant: contour (certified, exact; the default), or a second opinion. With --ledger: of
            the steps that it charges, in place of the plan's own accountant.
        ledger: a run or store ledger, or the folder that holds one; epsilon is recomputed from it.
        allow_large_delta: answer even where --delta is not below 1 over the population of the
            mechanism or, with --ledger, of its plan.
        by_examples: also the epsilon of users who hold fewer examples than the cap, by contour.
        curve: also the whole delta(epsilon) curve, and the most that any attack can tell, by
            contour. With --ledger: where one mechanism is all of the claim.
        proof: also prove the epsilon by ball arithmetic (needs the extra ``proof``): encloses delta
            there anew, and fails if the accountant is contradicted.
        json: print one JSON object on stdout.
    """
    from userdp.accounting.accountants import Accountant, epsilon_by

    if accountant not in (None, "contour") and (curve or by_examples):
        raise UseError(
            f"--curve and --by-examples are computed by contour, not by --accountant {accountant}",
            hint="leave --accountant out, or ask for them by themselves",
        )
    if epsilon is not None:
        if delta is not None or ledger or by_examples or curve or accountant or allow_large_delta:
            raise UseError("--epsilon goes with a mechanism, its noise and --proof only")
        if noise_multiplier is None:
            raise UseError("account needs --noise-multiplier: without it there is no delta")
        described = build_mechanism(options or MechanismOptions())
        mechanism = described.priced(noise_multiplier)
        result = {
            **delta_at(mechanism, epsilon, proof=proof),
            **described.to_dict(noise_multiplier),
        }
        emit(result, json=json, render=lambda console: print_table(console, result))
        return
    if ledger is not None:
        if options is not None or noise_multiplier is not None:
            raise UseError("--ledger says it all: leave the options of a mechanism out")
        found = _of_ledger(ledger, delta, wanted=bool(accountant or curve or by_examples or proof))
        result, priced, population = found.to_dict(), found.mechanism, None
        if found.plan is not None:
            described = Described(sampling=found.plan.sampling, steps=found.steps)
            population = found.plan.population
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
            delta,
            population,
            sampling=described.sampling,
            allow_large_delta=allow_large_delta,
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
        if bracket.note:
            result["note"] = bracket.note
    if by_examples:
        result["epsilon_by_examples"] = _by_examples(priced, described.sampling, delta)
    if curve:
        result["curve"] = _curve(priced)
    if proof:
        result["proof"] = proof_of_epsilon(priced, result)
    emit(result, json=json, render=lambda console: print_table(console, result))


def _of_ledger(path: Path, delta: float | None, *, wanted: bool) -> Claim:
    """The claim of a ledger; `UseError` if it is not of one mechanism, where one is ``wanted``.

    A sum over several charges, or the price of a choice, has no mechanism whose curve could be
    drawn, or that another accountant could price.
    """
    from userdp.ledger import claim

    found = claim(path, delta=delta)
    if delta is not None and found.guarantee.delta == 0:
        raise UseError(
            f"--delta says nothing here: all that {path} charges has delta 0",
            hint="leave --delta out",
        )
    if wanted and found.mechanism is None:
        why = "nothing" if math.isinf(found.guarantee.epsilon) else found.composition
        raise UseError(
            "--accountant, --curve, --by-examples and --proof ask of one mechanism, and the claim "
            f"of {path} is of {why}",
            hint="leave them out, or name the ledger of a single private run",
        )
    return found


def _by_examples(mechanism: Any, sampling: Sampling, delta: float) -> dict[str, float]:
    from userdp.accounting.holders import epsilon_by_items

    if sampling.by_user:
        raise UseError(
            f"--by-examples has no meaning with --sampling {sampling.kind}, where every user has "
            "the same epsilon"
        )
    found = epsilon_by_items(mechanism, delta)
    return {str(k): bracket.upper for k, bracket in found.items()}


def _curve(mechanism: Any) -> dict[str, list[float]]:
    from userdp.accounting.tradeoff import delta_curve

    rates = [1e-4, 1e-3, 0.01, 0.05, 0.1, 0.25, 0.5]
    found = delta_curve(lambda epsilon: float(mechanism.delta(epsilon).upper))
    return {
        "epsilon": list(found.epsilons),
        "delta": list(found.deltas),
        "false_positive_rate": rates,
        "largest_true_positive_rate": [found.max_true_positive_rate(rate) for rate in rates],
    }


def print_table(console: Console, result: dict[str, Any]) -> None:
    """The result as two columns, lists as tables of their own; ε rounded up."""
    table = Table(show_header=False, box=None, pad_edge=False)
    for key, value in result.items():
        if isinstance(value, dict):
            continue
        if key == "epsilon":
            value = f"[bold]{round_up(float(value), 6)}[/]"
        elif key == "delta":
            value = delta_up(float(value), 8)
        elif isinstance(value, float):
            value = f"{value:.8g}"
        table.add_row(key.replace("_", " "), str(value))
    console.print(table)
    if "proof" in result:
        print_proof(console, result["proof"])
    if "epsilon_by_examples" in result:
        rows = [(k, round_up(v)) for k, v in result["epsilon_by_examples"].items()]
        _print_columns(console, ("examples of the user", "epsilon"), rows)
    if "curve" in result:
        shown = result["curve"]
        pairs = zip(shown["epsilon"], shown["delta"], strict=True)
        rows = [(round_up(e, 6), delta_up(d, 4)) for e, d in list(pairs)[::8]]
        _print_columns(console, ("epsilon", "delta"), rows)
        rates = zip(shown["false_positive_rate"], shown["largest_true_positive_rate"], strict=True)
        _print_columns(
            console,
            ("an attack's false positives", "its true positives, at most"),
            [(f"{x:g}", f"{y:.6f}") for x, y in rates],
        )


def _print_columns(console: Console, names: tuple[str, str], rows: list[tuple[str, str]]) -> None:
    table = Table(box=None, pad_edge=False)
    for name in names:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*row)
    console.print()
    console.print(table)
