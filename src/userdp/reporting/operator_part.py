"""The operator's part of the page: losses, cohorts, audits and the cost. No ε covers any of it.

A public page is rendered without ever opening the files that it comes from.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from userdp.core.errors import UseError, kind_of
from userdp.core.files import read_json, read_lines
from userdp.core.vocabulary import epsilon_up
from userdp.ledger.run_folder import RunFolder
from userdp.reporting.drawing import MOST_SERIES, Plot, Series, image
from userdp.reporting.facts import Facts
from userdp.reporting.table import Table, table_of

HELD_OUT_USERS = "held-out-users"
_LOSS = "loss (nats per token)"
_CANARIES = "canaries in one more run (Steinke et al. 2023)"
_STEPS = "noise and draws of its steps, watched"
_FOUND = ("tpr_at_low_fpr", "tpr_low", "tpr_high", "low_fpr")
_ROC = ("auc", "auc_low", "auc_high", *_FOUND)

Line = Mapping[str, Any]
"""A line of ``operator.jsonl`` or a part of ``audit.json``; a number that is not finite is None."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OperatorFacts:
    """One run's operator-only numbers that a page shows.

    Args:
        steps: a line for each, ascending: ``step``, ``loss``, ``units``, ``rows``,
            ``clipped_fraction``, ``non_finite``, ``failed``, ``halvings``, ``seconds``.
        during: the held-out loss during training, ascending by ``step``; 0 is the base model.
        final: by split, the base model's and the released model's line, measured on the same
            people: ``loss``, ``user_loss``, ``users``, ``examples``.
        machine: what the run was last on, in words; empty if that was not noted.
        bounds: lower bounds on ε of its last audit, by method.
        attacks: on the released model (Kandpal et al. 2023), by what it was compared with.
        flagged: what contradicted the claim in that audit, in words.
    """

    steps: tuple[Line, ...]
    during: tuple[Line, ...] = ()
    final: Mapping[str, Mapping[str, Line]] = field(default_factory=dict)
    machine: str = ""
    bounds: Mapping[str, Line] = field(default_factory=dict)
    attacks: Mapping[str, Line] = field(default_factory=dict)
    flagged: tuple[str, ...] = ()

    @property
    def held_out(self) -> Mapping[str, Line]:
        """The final lines of held-out users."""
        return self.final.get(HELD_OUT_USERS, {})

    def known(self, name: str) -> list[float]:
        """A number of all steps in which it is known."""
        return [step[name] for step in self.steps if step.get(name) is not None]

    def total(self, name: str) -> float:
        """The sum of a number over all steps."""
        return math.fsum(self.known(name))


def read_operator(run: Path) -> OperatorFacts:
    """The operator-only facts in a run's folder; empty if there are no such files.

    A later line replaces an earlier one of the same step (a resumed run repeats no step's number,
    an evaluation may be repeated).

    Raises:
        UseError: a file cannot be read.
    """
    folder = RunFolder(run)
    steps: dict[int, Line] = {}
    during: dict[int, Line] = {}
    final: dict[str, dict[str, Line]] = {}
    machine = ""
    for line in map(_finite, read_lines(folder.operator)):
        match line.get("kind"):
            case "step":
                steps[line["step"]] = line
            case "evaluation" if line["split"] == HELD_OUT_USERS:
                during[line["step"]] = line
            case "final evaluation":
                final.setdefault(line["split"], {})[line["of"]] = line
            case "machine":
                told = (f"{name} {line[name]}" for name in ("cores", "torch") if line.get(name))
                machine = ", ".join((line["device"], *told))
    return OperatorFacts(
        steps=tuple(steps[number] for number in sorted(steps)),
        during=tuple(during[number] for number in sorted(during)),
        final=final,
        machine=machine,
        **_audit(folder),
    )


def _audit(folder: RunFolder) -> dict[str, Any]:
    """What the last audit of the run left; nothing if there was none."""
    path = folder.audit / "audit.json"
    if not path.exists():
        return {}
    told = read_json(path, what="an audit", finite=False)
    try:
        extra, others = told["extra_run"] or {}, told.get("references") or {}
        bounds = {_CANARIES: extra["bound"], _STEPS: extra["steps"]} if extra else {}
        held = float(told["held_epsilon"])
        rocs = {"the base model": told["inference"], f"{others.get('runs')} reference runs": others}
        return {
            "bounds": {
                how: {**_finite(one), "epsilon_lower": float(one["epsilon_lower"]), "held": held}
                for how, one in bounds.items()
            },
            "attacks": {
                against: {**{name: float(roc[name]) for name in _ROC}, "curve": roc.get("curve")}
                for against, roc in rocs.items()
                if roc
            },
            "flagged": tuple(map(str, told["flagged"])),
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UseError(
            f"{path} is damaged: {kind_of(error)}",
            hint="audit again: `userdp audit RUN --store STORE`; or make a public report",
        ) from error


def _finite(line: Line) -> Line:
    """A line with None in place of each number that is not finite, or of its word in JSON."""
    return {
        name: None
        if value in ("inf", "-inf", "nan")
        or (isinstance(value, float) and not math.isfinite(value))
        else value
        for name, value in line.items()
    }


def operator_view(
    runs: Sequence[Facts], operator: Sequence[OperatorFacts], *, comparable: bool
) -> dict[str, Any]:
    """What the operator's template is given: tables, plots and alarms.

    Args:
        runs: their public facts.
        operator: of the same runs.
        comparable: all claimed ε mean the same, so that they may share a plot.
    """
    pairs = list(zip(runs, operator, strict=True))
    bounds = [(run, how, one) for run, facts in pairs for how, one in facts.bounds.items()]
    plots = [
        _curves("Training loss", pairs, lambda facts: facts.steps),
        _curves("Held-out loss", pairs, lambda facts: facts.during),
        _against_epsilon(pairs) if comparable else None,
        _rocs(pairs),
    ]
    alarms = [(run.name, what) for run, facts in pairs for what in facts.flagged]
    alarms += [
        (run.name, f"{how}: ε is at least {one['epsilon_lower']:.4g}, and {_held(one)} is claimed")
        for run, how, one in bounds
        if _broken(run, one)
    ]
    return {
        "alarms": alarms,
        "losses": _losses(pairs),
        "bounds": _bounds(bounds),
        "attacks": _attacks(pairs),
        "steps": _steps(pairs),
        "figures": [{"plot": plot, "source": image(plot)} for plot in plots if plot is not None],
    }


_Pair = tuple[Facts, OperatorFacts]


def _curves(title: str, pairs: Sequence[_Pair], read: Any) -> Plot | None:
    """A line for each run that has two finite losses; None where no run has."""
    told = {
        run.name: [(one["step"], one["loss"]) for one in read(facts) if one.get("loss") is not None]
        for run, facts in pairs
    }
    series = [
        Series(name=name, xs=tuple(x for x, _ in points), ys=tuple(y for _, y in points))
        for name, points in told.items()
        if len(points) > 1
    ]
    if not series:
        return None
    return Plot(title=title, x_label="step", y_label=_LOSS, series=tuple(series[:MOST_SERIES]))


def _against_epsilon(pairs: Sequence[_Pair]) -> Plot | None:
    """ε and held-out loss of several runs; None where they were measured on different people."""
    told = [
        (run, after)
        for run, facts in pairs
        if run.private and (after := facts.held_out.get("model")) and after.get("loss") is not None
    ]
    people = {(run.store, after.get("users"), after.get("examples")) for run, after in told}
    if len(told) < 2 or len(people) > 1:
        return None
    return Plot(
        title="Privacy against held-out loss",
        x_label="ε claimed",
        y_label=_LOSS,
        series=tuple(
            Series(name=run.name, xs=(run.guarantee.epsilon,), ys=(after["loss"],))
            for run, after in told
        ),
        connected=False,
    )


def _rocs(pairs: Sequence[_Pair]) -> Plot | None:
    """The curves of attacks on the released models; None where no audit left one."""
    lines = [
        Series(
            name=f"{run.name}, against {against}",
            xs=tuple(x for x, _ in roc["curve"]),
            ys=tuple(y for _, y in roc["curve"]),
        )
        for run, facts in pairs
        for against, roc in facts.attacks.items()
        if roc["curve"]
    ]
    if not lines:
        return None
    coin = Series(name="a coin", xs=(1e-3, 1.0), ys=(1e-3, 1.0), reference=True)
    return Plot(
        title="Membership inference",
        x_label="others accused",
        y_label="members found",
        series=(*lines[:MOST_SERIES], coin),
        logarithmic="xy",
    )


def _losses(pairs: Sequence[_Pair]) -> Table:
    """Exact losses by run and split, before and after training."""

    def change(before: Line, after: Line) -> str | None:
        if before.get("loss") is None or after.get("loss") is None:
            return None
        return f"{after['loss'] - before['loss']:+.4f}".replace("-", "−")

    rows = [
        {
            "Run": run.name,
            "Split": split,
            "Base model": _text(before.get("loss")),
            "After": _text(after.get("loss")),
            "Change": change(before, after),
            "Perplexity after": _perplexity(after.get("loss")),
            "After, mean over users": _text(after.get("user_loss")),
            "Users": after.get("users"),
        }
        for run, facts in pairs
        for split, both in facts.final.items()
        for before, after in [_of_same_people(both)]
    ]
    return table_of(rows, sparse=True, key="After", caption="Loss, in nats per token")


def _of_same_people(both: Mapping[str, Line]) -> tuple[Line, Line]:
    """What was measured of the base and of the model, the latter last; the base on as many."""
    base, model = both.get("base", {}), both.get("model", {})
    return (base if base.get("users") == model.get("users") else {}), model


def _steps(pairs: Sequence[_Pair]) -> Table:
    def drawn(units: list[float]) -> str | None:
        return f"{min(units):,} / {fmean(units):,.1f} / {max(units):,}" if units else None

    def clipped(known: list[float]) -> str | None:
        return f"{100 * fmean(known):.1f} %" if known else None

    rows = [
        {
            "Run": run.name,
            "Steps logged": len(facts.steps),
            "Units expected, from the plan": run.plan and _text(run.plan.denominator, 1),
            "Units drawn: least / mean / most": drawn(facts.known("units")),
            "Clipped, mean": clipped(facts.known("clipped_fraction")),
            "Not finite, counted as zero": int(facts.total("non_finite")),
            "Raised an error, counted as zero": int(facts.total("failed")),
            "Passes halved, memory ran out": int(facts.total("halvings")),
            "Gradients computed": int(facts.total("rows")),
            "Seconds in steps": _text(facts.total("seconds") or None, 1),
            "Machine": facts.machine or None,
        }
        for run, facts in pairs
    ]
    return table_of(rows, sparse=True, caption="Steps: what was drawn, and what it cost")


def _bounds(bounds: Sequence[tuple[Facts, str, Line]]) -> Table | None:
    def verdict(run: Facts, one: Line) -> str:
        most = one.get("most_detectable")
        if _broken(run, one):
            return "contradicts the claim: do not release the model before this is explained"
        if not run.private:
            return "nothing is claimed"
        if most is None or most >= one["held"]:
            return "agrees with the claim"
        return f"agrees with the claim; it could not have shown more than ε = {epsilon_up(most)}"

    rows = [
        {
            "Run": run.name,
            "Method": how,
            "ε at least": f"{one['epsilon_lower']:.4g}",
            "Confidence": f"{100 * one['confidence']:g} %",
            "ε claimed of these steps, at most": _held(one) if run.private else run.epsilon,
            "Verdict": verdict(run, one),
        }
        for run, how, one in bounds
    ]
    caption = "Lower bounds on ε beside the claimed upper bound"
    return table_of(rows, key="ε at least", caption=caption) if rows else None


def _attacks(pairs: Sequence[_Pair]) -> Table | None:
    rows = [
        {
            "Run": run.name,
            "Against": how,
            "AUC (0.5 is chance)": "{auc:.3f}".format(**roc),
            "Its interval": "{auc_low:.3f} to {auc_high:.3f}".format(**roc),
            "Members found": "{:.1f} % ({:.1f} to {:.1f}), accusing {:g} % of others".format(
                *(100 * roc[name] for name in _FOUND)
            ),
        }
        for run, facts in pairs
        for how, roc in facts.attacks.items()
    ]
    caption = (
        "Membership inference: telling users who were trained on from others, by the released model"
    )
    return table_of(rows, caption=caption) if rows else None


def _broken(run: Facts, one: Line) -> bool:
    """Whether an audit's lower bound contradicts the claim of the steps that it repeated."""
    return run.private and one["epsilon_lower"] > one["held"]


def _held(one: Line) -> str:
    return epsilon_up(one["held"])


def _text(value: float | None, digits: int = 4) -> str | None:
    return None if value is None else f"{value:,.{digits}f}"


def _perplexity(loss: float | None) -> str | None:
    return None if loss is None else f"{math.exp(min(loss, 700.0)):,.1f}"
