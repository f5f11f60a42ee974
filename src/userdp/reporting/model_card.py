"""A model card in the Hugging Face format, from public facts alone."""

from __future__ import annotations

import json
import re
from typing import Any

from userdp.reporting.assumptions import Assumption, assumptions_of
from userdp.reporting.constants import constants_of
from userdp.reporting.holders import delta_facts, fewer_examples
from userdp.reporting.html import (
    basis_in_words,
    change_in_words,
    claim_sentence,
    gradients_in_words,
    public_row,
    render_text,
    why_no_claim,
)
from userdp.reporting.markdown import prose, visible
from userdp.reporting.meaning import FALSE_ALARMS
from userdp.reporting.run_facts import RunFacts
from userdp.version import __version__

CARD = "model_card.md.j2"
_ALGORITHMS = {
    "ULS": "DP-SGD with user-level sampling (ULS; Charles et al. 2024, Algorithm 2)",
    "ELS": "DP-SGD with example-level sampling (ELS; Charles et al. 2024, Algorithm 1)",
    "GP": "DP-SGD with example-level sampling and group privacy (Chua et al. 2024, Algorithm 1)",
}
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def render_model_card(run: RunFacts) -> str:
    """``MODEL_CARD.md`` of a run's released model: YAML front matter, then Markdown.

    Guarantee: it is a function of ``run`` alone, which holds nothing that the run's ε, or that of a
    release with a price of its own, does not cover. Whatever the template prints is escaped, so
    that no name or setting becomes markup.
    """
    row = public_row(run)
    values: dict[str, Any] = {
        "name": run.name,
        "claim": claim_sentence(run),
        "model": _base_model(run),
        "version": run.version,
        "algorithm": "no privacy" if run.plan is None else _ALGORITHMS[run.plan.algorithm],
        "private": run.private,
        "why": "" if run.private else why_no_claim(run),
        "epsilon": row.epsilon,
        "delta": row.delta,
        "unit": row.unit,
        "adjacency": row.adjacency,
        "change": change_in_words(run.guarantee) if run.private else "",
        "sampler": row.sampler,
        "accountant": row.accountant,
        "steps": row.steps,
        "digest": run.ledger_digest,
        "factor": row.factor,
        "best_guess": row.best_guess,
        "detection": row.detection,
        "bounded_by": row.bounded_by,
        "false_alarms": f"{FALSE_ALARMS:.0%}",
        "tier": row.tier,
        "delta_facts": delta_facts(run),
        "fewer": fewer_examples([run]),
        "by_user": run.plan is not None and run.plan.sampling.by_user,
        "assumptions": [_cells(found) for found in assumptions_of([run])],
        "basis": basis_in_words(run),
        "ledger_command": row.ledger_command,
        "mechanism_command": row.mechanism_command,
        "constants": [(row.name, row.values[0]) for row in constants_of([run])],
        "gradients": gradients_in_words(run),
        "train_command": row.train_command,
        "released": run.released,
        "made_by": __version__,
    }
    return front_matter(run) + render_text(CARD, values)


def front_matter(run: RunFacts) -> str:
    """The YAML block that the hub reads. Strings are quoted as JSON, which YAML reads alike."""
    lines = ["library_name: transformers", "pipeline_tag: text-generation"]
    model = str(run.train.get("model", ""))
    if _HUB_NAME.fullmatch(model):
        lines.append(f"base_model: {json.dumps(model)}")
    tags = ["userdp"]
    if run.private:
        tags += ["differential-privacy", "user-level-privacy", "dp-sgd"]
    lines += ["tags:", *(f"- {tag}" for tag in tags)]
    losses = [loss for loss in run.released if loss.of == "model"]
    if losses:
        lines += ["model-index:", f"- name: {_quoted(run.name)}", "  results:"]
        for loss in losses:
            metric = f"mean loss per user, released at ε = {loss.epsilon:g}"
            lines += [
                "  - task:",
                "      type: text-generation",
                "    dataset:",
                "      type: private",
                f"      name: {_quoted(f'private text, {loss.split}')}",
                "    metrics:",
                "    - type: loss",
                f"      name: {_quoted(metric)}",
                f"      value: {loss.user_loss!r}",
            ]
    return "\n".join(["---", *lines, "---", "", ""])


def _quoted(text: str) -> str:
    """A YAML string: JSON's, in characters rather than in surrogates, which YAML does not pair."""
    return json.dumps(visible(text), ensure_ascii=False)


def _base_model(run: RunFacts) -> str:
    model = run.settings.get("model", "not recorded")
    return "none: training began with random weights" if model == "new" else model


def _cells(found: Assumption) -> dict[str, str]:
    return {
        "grade": str(found.grade),
        "title": found.title,
        "statement": prose(found.statement),
        "otherwise": prose(found.otherwise),
    }
