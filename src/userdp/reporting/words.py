"""A run's public facts in words: what pages, summaries and cards put into their sentences."""

from __future__ import annotations

import shlex
from typing import Any

from userdp.accounting import Accountant
from userdp.claims.claims import SPENT_SO_FAR, printed_in_words, so_far_in_words
from userdp.codec import encode
from userdp.plans.small_delta import DeltaSize, size_of
from userdp.reporting.accountants import accountants_of
from userdp.reporting.constants import sampler_in_words
from userdp.reporting.meaning import factor_up, meaning_of_claim, percent_up
from userdp.reporting.numbers import delta_text, epsilon_text, in_powers
from userdp.reporting.run_facts import RunFacts
from userdp.reporting.table import MISSING
from userdp.vocabulary import Adjacency, round_up

_CHANGES = {
    Adjacency.ADD_OR_REMOVE: "adding or removing everything that one {unit} contributed",
    Adjacency.REPLACE: "exchanging everything that one {unit} contributed for anything else",
    Adjacency.ZERO_OUT: "blanking everything that one {unit} contributed",
    Adjacency.FIXED_GRAPH: "changing everything that one {unit} contributed, but not how much",
}


_WORLDS = {
    Adjacency.ADD_OR_REMOVE: "a certain {unit} never contributed",
    Adjacency.REPLACE: "a certain {unit} contributed something else",
    Adjacency.ZERO_OUT: "all that a certain {unit} contributed is blank",
    Adjacency.FIXED_GRAPH: "a certain {unit} contributed something else, of as many records",
}
_PART = {
    Adjacency.ADD_OR_REMOVE: "whether a certain {unit} took part",
    Adjacency.ZERO_OUT: "whether what a certain {unit} contributed was there",
}
_WHICH = "which of two things a certain {unit} contributed"


def change_in_words(unit: str, adjacency: Adjacency) -> str:
    """How two neighbouring data sets differ."""
    return _CHANGES[adjacency].format(unit=unit)


def world_in_words(unit: str, adjacency: Adjacency) -> str:
    """What is true in one of two worlds that differ in one unit."""
    return _WORLDS[adjacency].format(unit=unit)


def guess_in_words(unit: str, adjacency: Adjacency) -> str:
    """What an attacker would find out."""
    return _PART.get(adjacency, _WHICH).format(unit=unit)


def words_of(run: RunFacts) -> dict[str, Any]:
    """A run's public facts as words, for the page and the model card; "–" where there is none."""
    guarantee, meaning = run.guarantee, meaning_of_claim(run.claim)
    facts: dict[str, Any] = {
        "name": run.name,
        "private": run.private,
        "epsilon": epsilon_text(guarantee.epsilon) if run.private else "not claimed",
        "sampler": sampler_in_words(run),
        "steps": f"{run.plan.steps:,}" if run.plan else MISSING,
        "attempted": f"{run.claim.steps:,} of {run.plan.steps:,}" if run.plan else MISSING,
        "gradients": MISSING if run.gradients is None else f"{run.gradients:,.0f}",
        "state": _state(run),
        "basis": _capital(run.basis or "nothing: the run has no plan"),
        "version": run.version,
        "digest": run.ledger_digest,
        "conditions": [condition.in_words for condition in run.claim.conditions],
        "spent": "" if run.claim.lineage.fixed else SPENT_SO_FAR,
        "so_far": in_powers(so_far_in_words(run.claim) or ""),
        "printed": in_powers(printed_in_words(run.claim) or ""),
        "finished": run.finished,
        "user_is": run.user_is or "",
        "base": run.base,
        "expected": round_up(guarantee.epsilon, 6) if run.private else "inf",
        "ledger_command": f"userdp account --ledger {shlex.quote(run.name)}",
        "mechanism_command": mechanism_command(run),
        "train_command": train_command(run),
    }
    if meaning is None:  # nothing is claimed
        claimed = ("delta", "unit", "adjacency", "accountant", "change", "accountants")
        bounds = ("second", "second_why", "tier", "factor", "best_guess", "detection", "bounded_by")
        return facts | dict.fromkeys((*claimed, *bounds), MISSING)
    accountants = accountants_of(run.claim)
    return facts | {
        "accountants": accountants.sentence,
        "second": accountants.second,
        "second_why": accountants.why,
        "delta": delta_text(guarantee.delta),
        "unit": str(guarantee.unit),
        "adjacency": str(guarantee.adjacency),
        "accountant": guarantee.accountant,
        "change": change_in_words(str(guarantee.unit), guarantee.adjacency),
        "tier": meaning.tier,
        "factor": in_powers(factor_up(meaning.factor)),
        "best_guess": percent_up(meaning.best_guess),
        "detection": percent_up(meaning.detection),
        "bounded_by": meaning.bounded_by,
    }


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _state(run: RunFacts) -> str:
    if run.finished:
        return "complete"
    return "not finished" if run.plan is None else "interrupted, or still running"


def mechanism_command(run: RunFacts) -> str | None:
    """The command that prices the mechanism from nothing but the constants on this page."""
    plan = run.plan
    if plan is None or run.claim.mechanism is None:
        return None  # nothing is claimed; or of a tuning's winner, where choosing is priced too
    sampling = encode(plan.sampling)
    if plan.sampling.by_user:
        sampling.pop("group_size")  # of no bearing on ε, and refused by `userdp account`
    options = {"sampling": sampling.pop("kind")}
    own = ("group_size", "sampling_probability")  # the others are settings
    options |= {name: sampling.pop(name) for name in own if name in sampling}
    if plan.accountant is not Accountant.CONTOUR:
        options["accountant"] = plan.accountant
    options |= {
        "noise_multiplier": plan.noise.multiplier,
        "steps": plan.steps,
        "delta": run.guarantee.delta,
    }
    flags = [f"--{name.replace('_', '-')} {value}" for name, value in options.items()]
    flags += [f"--set sampling.{name}={value}" for name, value in sampling.items()]
    return f"userdp account {' '.join(flags)}"


def train_command(run: RunFacts) -> str | None:
    """``userdp train …`` with the run's plan and the settings that learning depends on.

    None of a run of `make_private`: a loop of somebody's own is repeated by no command.

    It is run in the run's folder, where ``plan.json`` and ``train.toml`` lie. It draws fresh
    cohorts and noise, so that it repeats the distribution of the weights, not the weights. STORE
    is left for the reader to fill in.
    """
    if not run.train:
        return None
    plan, flags = run.plan, ""
    if plan is not None:
        flags += " --plan plan.json"
        if size_of(plan.budget.target_delta, plan.population) is DeltaSize.TOO_LARGE:
            flags += " --set run.allow_large_delta=true"
    if str(run.train.get("selection", "")).endswith("perplexity"):
        flags += " --set run.scores=scores.arrow"
    return f"userdp train STORE --out AGAIN{flags} --config train.toml"
