"""``userdp.audit``: attack a run, repeat it with canaries, and hold it against its claim."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from userdp.auditing.audit_run import audit_run
from userdp.commands.progress import shown
from userdp.commands.run import Place, folder_of, opened
from userdp.commands.words import for_whom
from userdp.data.progress import Progress
from userdp.errors import UseError
from userdp.interrupts import told
from userdp.reporting.curves import Plot, Series, save_plots
from userdp.reporting.drawing import require_drawing_place
from userdp.reporting.table import Table, table_of
from userdp.vocabulary import delta_up, require_count, round_up


@dataclass(frozen=True, kw_only=True, slots=True)
class Audited:
    """What an audit found; operator-only.

    Args:
        run: its folder.
        values: all that was measured.
    """

    run: Path
    values: Mapping[str, Any]

    @property
    def passed(self) -> bool:
        """Whether nothing contradicts the claim, which is no proof of it."""
        return bool(self.values["passed"])

    @property
    def status(self) -> int:
        """The exit status of the command."""
        return 0 if self.passed else 1

    @property
    def epsilon_lower(self) -> float | None:
        """What the canaries prove; None without an extra run."""
        lower: float | None = self.values["epsilon_lower"]
        return lower

    def to_dict(self) -> dict[str, Any]:
        """What ``userdp audit --json`` prints."""
        return {"run": str(self.run), "operator_only": True, **self.values}


def audit(
    run: Place,
    *,
    store: str | os.PathLike[str],
    canaries: int = 128,
    inference: bool = True,
    repeat: bool = True,
    references: int = 0,
    most_users: int = 2000,
    most_examples: int = 8,
    confidence: float = 0.95,
    plot: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    device: str = "auto",
    progress: Progress | None = None,
) -> Audited:
    """Attack a run and give an empirical lower bound on its epsilon; operator-only.

    The audit has three parts: a user-inference attack on the released model, with fresh text of
    its users; one more run of the same plan with canary users, each of whom is in or out by a
    coin, and must not be guessed too well; and white-box checks of that run's noise, draws and
    sensitivity at every step. The extra run costs about what the run did, works on a copy of the
    store, releases nothing and is not charged. The exit status is 1 where something contradicts
    the claim.

    Args:
        run: a finished run, or its folder.
        store: the store that it was trained on.
        canaries: how many users to make up; more can prove a larger epsilon.
        inference: attack the released model.
        repeat: make the extra run.
        references: make the attack also against so many reference runs (an even number): runs like
            this one on halves of all people, each of which costs as much. It is the sharper attack.
        most_users: most users of each side of the attack.
        most_examples: most fresh examples of a user that the attack reads.
        confidence: of the lower bound by canaries.
        plot: draw the ROC of the attack into this file (PNG, SVG or PDF; operator-only).
        overwrite: replace the file at plot.
        device: auto (cuda where there is one, else cpu), cpu, cuda or cuda:N.
        progress: is told how far it is; by default a bar, or lines where stderr is no terminal.

    Raises:
        UseError: an argument is out of range.
    """
    if plot is not None:
        if not inference:
            raise UseError("--plot draws the attack that --no-inference leaves out")
        require_drawing_place(Path(plot), overwrite=overwrite)
    if not inference and not repeat:
        raise UseError("--no-repeat and --no-inference leave nothing to audit")
    require_count("--canaries", canaries, at_least=8, at_most=100_000)
    if not 0.5 <= confidence < 1:
        raise UseError(f"--confidence must be from 0.5 to less than 1, got {confidence}")
    if references and not inference:
        raise UseError("--references serve the attack that --no-inference leaves out")
    path = folder_of(run)
    left = "before its end: reference runs that are finished are kept, and nothing was charged"
    with told(left, resume=False, always=True), shown(progress) as bar:
        values = audit_run(
            path,
            opened(Path(store)),
            inference=inference,
            references=references,
            repeat=repeat,
            canaries=canaries,
            most_users=most_users,
            most_examples=most_examples,
            confidence=confidence,
            device=device,
            progress=bar,
        )
    audited = Audited(run=path, values=values)
    if plot is not None:
        _draw(_attacks(audited.to_dict()), Path(plot))
    return audited


def in_words(audited: Audited) -> Iterator[Table | str]:
    """What was measured beside what is claimed, and whether anything contradicts the claim."""
    result = audited.to_dict()
    for name, attack in _attacks(result):
        yield (
            f"User inference {name}: AUC {attack['auc']:.3f} ({attack['auc_low']:.3f} to "
            f"{attack['auc_high']:.3f} at {attack['confidence']:.0%}); true positive rate at a "
            f"false positive rate of {attack['low_fpr']:.0%}: {attack['tpr_at_low_fpr']:.1%}; "
            f"{attack['members']} members, {attack['others']} others: "
            + ("at chance." if attack["at_chance"] else "not at chance.")
        )
    if result["extra_run"] is None:
        yield "No extra run: nothing was held against the claim."
    else:
        yield from _extra(result, result["extra_run"])
        if math.isinf(float(result["claimed_epsilon"])) and result["passed"]:
            yield "This run claims nothing: its epsilon is infinite, and no check contradicts that."
        else:
            yield _false_alarm(result, result["extra_run"])
            flagged = "; ".join(result["flagged"])
            yield (
                "Nothing contradicts the claim. That is no proof of it."
                if result["passed"]
                else f"The claim is CONTRADICTED by: {flagged}."
            )
    yield for_whom(
        operator_only=True, why="exact results on people's text, which no epsilon covers"
    )


def _false_alarm(result: dict[str, Any], again: dict[str, Any]) -> str:
    def most(probability: float) -> str:
        return round_up(probability - 1e-12)  # 1 - 0.95 is a little more than 0.05

    return (
        "A right run's claim would be contradicted with probability at most "
        f"{most(result['false_alarm'])}, over all checks and canaries together: "
        f"{most(1 - again['bound']['confidence'])} by the canaries, "
        f"{most(again['steps']['false_alarm'])} by the steps."
    )


def _extra(result: dict[str, Any], again: dict[str, Any]) -> Iterator[Table | str]:
    bound, steps = again["bound"], again["steps"]
    claimed, detectable = result["claimed_epsilon"], bound["most_detectable"]
    yield (
        f"Canaries: epsilon is at least {bound['epsilon_lower']:.3f} at {bound['confidence']:.0%} "
        f"confidence; claimed at most {round_up(claimed)} (delta {delta_up(result['delta'])}). "
        f"The largest that {again['canaries']} canaries could have proved is {detectable:.3f}"
        + (": they cannot contradict this claim." if detectable <= claimed else ".")
    )
    yield (
        f"Steps: the noise seen and a user who moves the sum by {steps['worst_move']:.4f} of the "
        f"clip norm prove epsilon {steps['epsilon_lower']:.4f} at {steps['confidence']:.1%}; "
        f"a run of epsilon {steps['detectable_epsilon']:.4f} or more would have been caught."
    )
    yield table_of(
        steps["checks"],
        {
            "check": lambda check: check["name"],
            "p-value": lambda check: (
                None if check["p_value"] is None else f"{check['p_value']:.2g}"
            ),
            "seen": lambda check: None if check["seen"] is None else f"{check['seen']:.4g}",
            "expected": lambda check: f"{check['expected']:.4g}",
            "result": lambda check: "FLAGGED" if check["flagged"] else "ok",
            "would have caught": lambda check: check["power"],
        },
    )
    own = result["run_seconds"]
    yield f"The extra run took {again['seconds']:.1f} s" + (
        "." if own is None else f"; the steps of the run itself took {own:.1f} s."
    )


def _attacks(result: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The attacks on the released model that were made, by name."""
    attacks = []
    if result["inference"] is not None:
        attacks.append(("against the base model", result["inference"]))
    if result["references"] is not None:
        runs = result["references"]["runs"]
        attacks.append((f"against {runs} reference runs", result["references"]))
    return attacks


def _draw(attacks: list[tuple[str, dict[str, Any]]], path: Path) -> None:
    """The ROC, also on logarithmic axes, where few false positives can be seen."""
    lines = [Series(name="chance", xs=(1e-3, 1.0), ys=(1e-3, 1.0), marked=False)]
    for name, attack in attacks:
        false, true = zip(*attack["curve"], strict=True)
        bounds = f"AUC {attack['auc']:.3f} ({attack['auc_low']:.3f} to {attack['auc_high']:.3f})"
        lines.append(Series(name=f"{name}: {bounds}", xs=false, ys=true, marked=False))
    plain = Plot(
        title="User inference: operator-only",
        x_label="false positive rate",
        y_label="true positive rate",
        series=tuple(lines),
    )
    save_plots([plain, replace(plain, logarithmic="xy")], path, operator_only=True)
