"""``userdp account``: the (ε, δ) of a mechanism, or of what a ledger says was run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console
from rich.table import Table

from userdp.cli.account_proof import (
    delta_at,
    mechanism_of_ledger,
    print_proof,
    proof_of_epsilon,
)
from userdp.cli.mechanism_options import (
    AccountantName,
    MechanismOptions,
    build_mechanism,
    describe,
)
from userdp.cli.output import emit
from userdp.errors import UseError
from userdp.guarantees import round_up


def account(
    *,
    options: Annotated[MechanismOptions | None, Parameter(name="*")] = None,
    noise_multiplier: float | None = None,
    delta: float | None = None,
    epsilon: float | None = None,
    accountant: AccountantName = "contour",
    ledger: Path | None = None,
    by_examples: bool = False,
    curve: bool = False,
    proof: bool = False,
    json: bool = False,
) -> None:
    """Compute the (epsilon, delta) of a mechanism or of a ledger; reads no data.

    Args:
        options: see MechanismOptions.
        noise_multiplier: standard deviation of the noise divided by the clip norm.
        delta: in (0, 1); with --ledger, each run's own by default.
        epsilon: in place of delta: the delta at this epsilon, by contour.
        accountant: contour (certified, exact), or a second opinion.
        ledger: a run or store ledger, or the folder that holds one; epsilon is recomputed from it.
        by_examples: also the epsilon of users who hold fewer examples than the cap.
        curve: also the whole delta(epsilon) curve, and the most that any attack can tell.
        proof: also prove the epsilon by ball arithmetic (needs the extra ``proof``): encloses delta
            there anew, and fails if the accountant is contradicted.
        json: print one JSON object on stdout.
    """
    if epsilon is not None:
        if delta is not None or ledger or by_examples or curve or accountant != "contour":
            raise UseError("--epsilon goes with a mechanism, its noise and --proof only")
        if noise_multiplier is None:
            raise UseError("account needs --noise-multiplier: without it there is no delta")
        priced = build_mechanism(options or MechanismOptions(), noise_multiplier=noise_multiplier)
        result = {**delta_at(priced, epsilon, proof=proof), **describe(priced)}
        emit(result, json=json, render=lambda console: print_table(console, result))
        return
    if ledger is not None:
        if options is not None or noise_multiplier is not None:
            raise UseError("--ledger says it all: leave the options of a mechanism out")
        from userdp.ledger import claim

        result = claim(ledger, delta=delta).to_dict()
        if proof:
            priced = mechanism_of_ledger(ledger, result["composition"])
            result["proof"] = proof_of_epsilon(priced, result)
        emit(result, json=json, render=lambda console: print_table(console, result))
        return
    if noise_multiplier is None or delta is None:
        raise UseError(
            "account needs --noise-multiplier and --delta (or --ledger PATH): "
            "without them there is no epsilon to compute"
        )
    from userdp.accounting.accountants import Accountant, epsilon_by

    mechanism = build_mechanism(options or MechanismOptions(), noise_multiplier=noise_multiplier)
    bracket = epsilon_by(Accountant(accountant), mechanism, delta)
    result = {
        "epsilon": bracket.upper,
        "epsilon_lower_bound": bracket.lower,
        "delta": delta,
        **describe(mechanism),
        "accountant": bracket.accountant,
    }
    if bracket.note:
        result["note"] = bracket.note
    if by_examples:
        result["epsilon_by_examples"] = _by_examples(mechanism, delta)
    if curve:
        result["curve"] = _curve(mechanism)
    if proof:
        result["proof"] = proof_of_epsilon(mechanism, result)
    emit(result, json=json, render=lambda console: print_table(console, result))


def _by_examples(mechanism: Any, delta: float) -> dict[str, float]:
    from userdp.accounting.holders import epsilon_by_examples
    from userdp.accounting.mechanisms import PoissonUsers

    if isinstance(mechanism, PoissonUsers):
        raise UseError(
            "--by-examples has no meaning with --sampling users: every user has the same epsilon"
        )
    found = epsilon_by_examples(mechanism, delta)
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
        rows = [(f"{e:.6g}", f"{d:.4g}") for e, d in list(pairs)[::8]]
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
