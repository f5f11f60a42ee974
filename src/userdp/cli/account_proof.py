"""``account --proof``: what ball arithmetic says of the ε that was printed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from userdp.errors import UseError


def proof_of_epsilon(mechanism: Any, result: dict[str, Any]) -> dict[str, Any]:
    """The proof of ``result``'s ε at its δ; raises where it contradicts the accountant."""
    from userdp.accounting.bracket import Bracket
    from userdp.accounting.claims import prove_epsilon

    bracket = Bracket(
        lower=float(result.get("epsilon_lower_bound", 0.0)),
        upper=float(result["epsilon"]),
        accountant=str(result["accountant"]),
    )
    return prove_epsilon(mechanism, float(result["delta"]), bracket)


def mechanism_of_ledger(path: Path, composition: str) -> Any:
    """The mechanism whose steps a run's ledger charges.

    Raises:
        UseError: the claim is not the price of one mechanism.
    """
    from userdp.ledger import run, store
    from userdp.ledger.journal import read_entries

    if path.is_dir():
        path = path / store.FILE_NAME
    entries = read_entries(path)
    plan = run.plan_of(path, entries) if entries and entries[0].get("kind") != "store" else None
    if plan is None or composition != "steps of one mechanism":
        raise UseError(
            f"the claim of {path} is not the price of one mechanism ({composition}): there is "
            "nothing to prove in one piece",
            hint="leave --proof out, or name the ledger of a single private run",
        )
    steps = run.count_attempts(entries)
    if steps == 0:
        raise UseError(f"the ledger {path} charges no step yet: there is nothing to prove")
    return plan.mechanism.with_steps(steps)


def delta_at(mechanism: Any, epsilon: float, *, proof: bool) -> dict[str, Any]:
    """δ at a given ε by the contour accountant, and by ball arithmetic where ``proof`` is asked."""
    from userdp.accounting.claims import prove_delta

    bracket = mechanism.delta(epsilon)
    result: dict[str, Any] = {
        "delta": bracket.upper,
        "delta_lower_bound": bracket.lower,
        "epsilon": epsilon,
        "accountant": bracket.accountant,
    }
    if proof:
        result["proof"] = prove_delta(mechanism, epsilon, bracket)
    return result


def print_proof(console: Console, proof: dict[str, Any]) -> None:
    """The proof in two columns: the claim, whether it is proven, and the enclosure."""
    rows = [("claim", proof["claim"]), ("proven", _word(proof["proven"]))]
    if "why" in proof:
        rows.append(("why", str(proof["why"])))
    if "delta_upper" in proof:
        ends = f"{proof['delta_lower']!r} to {proof['delta_upper']!r}"
        rows.append(("delta there", ends))
        rows.append(("took", f"{proof['seconds']} s at {proof['bits']} bits"))
        rows.append(("what is proven", proof["scope"]))
    if "epsilon_lower_bound" in proof:
        below = proof["epsilon_lower_bound"]
        rows.append(("no smaller epsilon", f"{below['claim']}: {_word(below['proven'])}"))
    table = Table(title="proof by ball arithmetic", title_justify="left", show_header=False)
    table.box = None
    for name, value in rows:
        table.add_row(name, value)
    console.print()
    console.print(table)


def _word(proven: bool) -> str:
    return "proven" if proven else "not proven"
