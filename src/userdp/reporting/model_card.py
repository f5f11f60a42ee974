"""A model card in the Hugging Face format, from public facts only."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from userdp.claims.headline import why_nothing
from userdp.reporting.assumptions import Assumption, assumptions_of
from userdp.reporting.base_model import base_model_in_words
from userdp.reporting.constants import constants_of
from userdp.reporting.holders import delta_facts, fewer_examples
from userdp.reporting.markdown import Ready, markdown, prose, visible
from userdp.reporting.meaning import FALSE_ALARMS
from userdp.reporting.parts import parts_of_claim
from userdp.reporting.releases import released_losses
from userdp.reporting.rendering import render_text
from userdp.reporting.run_facts import RunFacts
from userdp.reporting.table import Table, table_of
from userdp.reporting.words import words_of
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

    Guarantee: it is a function of ``run`` only, which holds nothing that the run's ε, or that of a
    release with a price of its own, does not cover. Whatever the template prints is escaped, so
    that no name or setting becomes markup.
    """
    constants = constants_of([run])
    values: dict[str, Any] = {
        **words_of(run),
        "headline": run.claim.headline,
        "parts": parts_of_claim(run.claim),
        "model": base_model_in_words(run.base),
        "algorithm": "no privacy" if run.plan is None else _ALGORITHMS[run.plan.algorithm],
        "why": "" if run.private else why_nothing(run.claim),
        "false_alarms": f"{FALSE_ALARMS:.0%}",
        "delta_facts": delta_facts(run),
        "fewer": fewer_examples([run]),
        "by_user": run.plan is not None and run.plan.sampling.by_user,
        "assumptions": table_of(assumptions_of([run]), _ASSUMPTIONS),
        "constants": Table(columns=("Constant", "Value"), rows=[row[:2] for row in constants.rows]),
        "released": released_losses([(run.name, loss) for loss in run.released]),
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


_ASSUMPTIONS: dict[str, Callable[[Assumption], str]] = {
    "Grade": lambda one: str(one.grade),
    "What has to be true": lambda one: Ready(f"**{markdown(one.title)}.** {prose(one.statement)}"),
    "Otherwise": lambda one: prose(one.otherwise),
}
