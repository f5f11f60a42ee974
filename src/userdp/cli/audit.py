"""``userdp audit``: attack a run, repeat it with canaries, and hold it against its claim."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from userdp.cli.output import emit
from userdp.cli.progress import StepBar
from userdp.errors import UseError
from userdp.reporting.drawing import panels, require_drawing_place, save
from userdp.vocabulary import delta_up, round_up


def audit(
    run: Path,
    /,
    *,
    store: Path,
    canaries: int = 128,
    inference_only: bool = False,
    no_inference: bool = False,
    references: int = 0,
    most_users: int = 2000,
    most_examples: int = 8,
    confidence: float = 0.95,
    plot: Path | None = None,
    json: bool = False,
) -> int:
    """Attack a run and give an empirical lower bound on its epsilon; operator-only.

    Three things: a user-inference attack on the released model, with fresh text of its users; one
    more run of the same plan with canary users, each in or out by a coin, who must not be guessed
    too well; and white-box checks of that run's noise, draws and sensitivity at every step. The
    extra run costs at most what the run did, works on a copy of the store, releases nothing and is
    not charged. Exit status 1 where something contradicts the claim.

    Args:
        run: the folder of a finished run.
        store: the store it was trained on.
        canaries: how many users to make up; more can prove a larger epsilon.
        inference_only: no extra run.
        no_inference: no attack on the released model.
        references: make the attack also against so many reference runs (an even number): runs like
            this one on halves of all people, which cost as much each. The sharper attack.
        most_users: of a side of the attack.
        most_examples: fresh examples of a user that the attack reads.
        confidence: of the lower bound by canaries.
        plot: draw the ROC of the attack into this file (PNG, SVG or PDF; operator-only).
        json: print one JSON object on stdout.
    """
    if inference_only and no_inference:
        raise UseError("--inference-only and --no-inference leave nothing to audit")
    if not 8 <= canaries <= 100_000:
        raise UseError(f"--canaries must be from 8 to 100000, got {canaries}")
    if not 0.5 <= confidence < 1:
        raise UseError(f"--confidence must be from 0.5 to less than 1, got {confidence}")
    if plot is not None:
        if no_inference:
            raise UseError("--plot draws the attack that --no-inference leaves out")
        require_drawing_place(plot)
    from userdp.auditing.audit_run import audit_run
    from userdp.data.store import UserStore

    if references and no_inference:
        raise UseError("--references serve the attack that --no-inference leaves out")
    with StepBar() as bar:
        found = audit_run(
            run,
            UserStore.open(store),
            inference=not no_inference,
            references=references,
            repeat=not inference_only,
            canaries=canaries,
            most_users=most_users,
            most_examples=most_examples,
            confidence=confidence,
            progress=bar,
        )
    result: dict[str, Any] = {"run": str(run), "operator_only": True, **found}
    if plot is not None:
        _draw(_attacks(result), plot)
    emit(result, json=json, render=lambda console: _print(console, result))
    return 0 if result["passed"] else 1


def _print(console: Console, result: dict[str, Any]) -> None:
    def say(text: str) -> None:
        console.print(text, soft_wrap=True, markup=False)

    for name, attack in _attacks(result):
        say(
            f"User inference {name}: AUC {attack['auc']:.3f} ({attack['auc_low']:.3f} to "
            f"{attack['auc_high']:.3f} at {attack['confidence']:.0%}), true positives at "
            f"{attack['low_fpr']:.0%} false ones: {attack['tpr_at_low_fpr']:.1%}; "
            f"{attack['members']} members, {attack['others']} others: "
            + ("at chance." if attack["at_chance"] else "not at chance.")
        )
    again = result["extra_run"]
    if again is not None:
        _print_extra(console, say, result, again)
    if again is None:
        say("No extra run: nothing was held against the claim.")
    elif math.isinf(float(result["claimed_epsilon"])):
        say("This run claims nothing: its epsilon is infinite, and no check can contradict that.")
    elif result["passed"]:
        say(_false_alarm(result))
        say("Nothing contradicts the claim. That is no proof of it.")
    else:
        say(_false_alarm(result))
        say("The claim is CONTRADICTED by: " + "; ".join(result["flagged"]) + ".")
    say("Operator-only: exact results on people's text, not differentially private.")


def _false_alarm(result: dict[str, Any]) -> str:
    again = result["extra_run"]

    def most(probability: float) -> str:
        return round_up(probability - 1e-12)  # 1 - 0.95 is a little more than 0.05

    return (
        "A right run's claim would be contradicted with probability at most "
        f"{most(result['false_alarm'])}, over all checks and canaries together: "
        f"{most(1 - again['bound']['confidence'])} by the canaries, "
        f"{most(again['steps']['false_alarm'])} by the steps."
    )


def _print_extra(console: Console, say: Any, result: dict[str, Any], again: dict[str, Any]) -> None:
    bound, steps = again["bound"], again["steps"]
    claimed = result["claimed_epsilon"]
    say(
        f"Canaries: epsilon is at least {bound['epsilon_lower']:.3f} at {bound['confidence']:.0%} "
        f"confidence; claimed at most {round_up(claimed)} (delta {delta_up(result['delta'])}). "
        f"The largest that {again['canaries']} canaries could have proved is "
        f"{bound['most_detectable']:.3f}"
        + (": they cannot contradict this claim." if bound["most_detectable"] <= claimed else ".")
    )
    estimates = ", ".join(
        f"{name} none" if value is None else f"{name} {value:.3g}"
        for name, value in bound["estimates"].items()
    )
    say(f"Estimates without a confidence level (Andrew et al. 2024): {estimates}.")
    say(
        f"Steps: the noise seen and a user who moves the sum by {steps['worst_move']:.4f} of the "
        f"clip norm prove epsilon {steps['epsilon_lower']:.4f} at {steps['confidence']:.1%}; "
        f"a run of epsilon {steps['detectable_epsilon']:.4f} or more would have been caught."
    )
    table = Table(box=None, pad_edge=False)
    for name in ("check", "p-value", "seen", "expected", "", "would have caught"):
        table.add_column(name)
    for check in steps["checks"]:
        p, seen = check["p_value"], check["seen"]
        table.add_row(
            check["name"],
            "-" if p is None else f"{p:.2g}",
            "-" if seen is None else f"{seen:.4g}",
            f"{check['expected']:.4g}",
            "FLAGGED" if check["flagged"] else "ok",
            check["power"],
        )
    console.print(table)
    own = result["run_seconds"]
    say(
        f"Cost: {again['gradients']:,} gradients of users or examples; the run itself takes "
        f"{again['planned_gradients']:,.0f}. {again['seconds']:.1f} s"
        + ("." if own is None else f"; the steps of the run itself took {own:.1f} s.")
    )


def _attacks(result: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The attacks on the released model that were made, by name."""
    found = []
    if result["inference"] is not None:
        found.append(("against the base model", result["inference"]))
    if result["references"] is not None:
        runs = result["references"]["runs"]
        found.append((f"against {runs} reference runs", result["references"]))
    return found


def _draw(attacks: list[tuple[str, dict[str, Any]]], path: Path) -> None:
    """The ROC, also on logarithmic axes, where few false positives can be seen."""
    figure, axes = panels(2)
    for axis in axes:
        for name, attack in attacks:
            false, true = zip(*attack["curve"], strict=True)
            bounds = f"{attack['auc']:.3f} ({attack['auc_low']:.3f} to {attack['auc_high']:.3f})"
            axis.plot(false, true, label=f"{name}: {bounds}")
        axis.plot([1e-4, 1], [1e-4, 1], ":", color="tab:gray", label="chance")
        axis.set_xlabel("false positive rate")
        axis.set_ylabel("true positive rate")
        axis.grid(alpha=0.3)
    axes[1].set_xscale("log")
    axes[1].set_yscale("log")
    axes[1].set_xlim(1e-3, 1)
    axes[1].set_ylim(1e-3, 1)
    axes[1].legend(fontsize=8, loc="lower right")
    figure.suptitle("User inference: AUC with its interval, operator-only")
    save(figure, path, operator_only=True)
