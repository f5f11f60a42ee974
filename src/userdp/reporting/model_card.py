"""A model card in the Hugging Face format, from public facts only."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from userdp.claims.claims import why_nothing
from userdp.errors import UseError
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
from userdp.vocabulary import epsilon_up

CARD = "model_card.md.j2"
README = "README.md"
"""The name under which the hub shows a card."""
_ALGORITHMS = {
    "ULS": "DP-SGD with user-level sampling (ULS; Charles et al. 2024, Algorithm 2)",
    "ELS": "DP-SGD with example-level sampling (ELS; Charles et al. 2024, Algorithm 1)",
    "GP": "DP-SGD with example-level sampling and group privacy (Chua et al. 2024, Algorithm 1)",
}
_PLAIN = r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,95}"
_NAME_ON_HUB = re.compile(f"({_PLAIN}/)?{_PLAIN}")
_LICENSE = re.compile(r"[a-z0-9][a-z0-9.\-]{0,63}")
_TAG = re.compile(r"[A-Za-z0-9][\w.:+\-]{0,63}")


@dataclass(frozen=True, kw_only=True, slots=True)
class CardFacts:
    """What a card says beside a run's public facts: the operator's words, and what is exported.

    Args:
        base_model: its name on the hub; None if it is not from there.
        license: as the hub spells it, such as ``apache-2.0``.
        datasets: names on the hub of what the model was trained on, if it is public there.
        tags: beside those that every card has.
        config: the model is one of `transformers`; else only its weights are there.
        tokenizer: there is one.
        adapter: there are adapters, apart from the model that they are merged into.

    Raises:
        UseError: one of the operator's words is nothing that the hub knows.
    """

    base_model: str | None = None
    license: str | None = None
    datasets: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    config: bool = True
    tokenizer: bool = True
    adapter: bool = False

    def __post_init__(self) -> None:
        _require("--base-model", self.base_model, _NAME_ON_HUB, "openai-community/gpt2")
        _require("--license", self.license, _LICENSE, "apache-2.0")
        for one in self.datasets:
            _require("--dataset", one, _NAME_ON_HUB, "HuggingFaceFW/fineweb")
        for one in self.tags:
            _require("--tag", one, _TAG, "code")


def _require(option: str, value: str | None, pattern: re.Pattern[str], example: str) -> None:
    if value is not None and not pattern.fullmatch(value):
        raise UseError(
            f"{option} {value!r} is no name as the Hugging Face hub writes it: it stands in the "
            "head of the model card, which the hub reads",
            hint=f"for example {option} {example}",
        )


def base_model_on_hub(run: RunFacts) -> str | None:
    """The name on the hub of the model that a run began from, if its ledger says that it is there.

    A folder's name is never one, whatever it looks like.
    """
    named = run.base.name or ""
    sure = run.base.origin == "hub" or (run.base.origin == "memory" and "/" in named)
    return named if sure and _NAME_ON_HUB.fullmatch(named) else None


def render_model_card(run: RunFacts, card: CardFacts | None = None) -> str:
    """``README.md`` of a run's released model: YAML front matter, then Markdown.

    Guarantee: it is a function of ``run`` and ``card`` only. ``run`` holds nothing that the run's
    ε, or that of a release with a price of its own, does not cover; ``card`` nothing of anybody's
    text. Whatever the template prints is escaped, so that no name or setting becomes markup.
    """
    card = card or CardFacts()
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
        "card": card,
        "snippet": _snippet(card),
        "train_command": None,  # train.toml is not handed on: it names places on this machine
        "verify_command": f"userdp verify {shlex.quote(run.name)}",
    }
    return front_matter(run, card) + render_text(CARD, values)


def front_matter(run: RunFacts, card: CardFacts) -> str:
    """The YAML block that the hub reads. Strings are quoted as JSON, which YAML reads alike."""
    lines = ["pipeline_tag: text-generation"]
    if card.config:
        lines.insert(0, "library_name: transformers")
    if card.base_model:
        lines.append(f"base_model: {_quoted(card.base_model)}")
    if card.license:
        lines.append(f"license: {_quoted(card.license)}")
    if card.datasets:
        lines += ["datasets:", *(f"- {_quoted(one)}" for one in card.datasets)]
    tags = ["userdp"]
    if run.private:
        tags += ["differential-privacy", "user-level-privacy", "dp-sgd"]
    tags = list(dict.fromkeys((*tags, *card.tags)))
    lines += ["tags:", *(f"- {_quoted(tag)}" for tag in tags)]
    losses = [loss for loss in run.released if loss.of == "model"]
    if losses:
        lines += ["model-index:", f"- name: {_quoted(run.name)}", "  results:"]
        for loss in losses:
            metric = f"mean loss per user, released at ε = {epsilon_up(loss.epsilon)}"
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


def _snippet(card: CardFacts) -> str:
    """Python that loads the model, run in the folder of the card."""
    if card.adapter and not card.config:
        return 'peft.PeftModel.from_pretrained(base, "adapter")  # over the base model'
    if not card.config:
        return (
            "from safetensors.torch import load_file\n\n"
            'weights = load_file("model.safetensors")  # for the module that they are of'
        )
    if not card.tokenizer:
        return (
            "from transformers import AutoModelForCausalLM\n\n"
            'model = AutoModelForCausalLM.from_pretrained(".")'
        )
    return (
        "from transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
        'model = AutoModelForCausalLM.from_pretrained(".")\n'
        'tokenizer = AutoTokenizer.from_pretrained(".")\n'
        'tokens = tokenizer("The", return_tensors="pt", return_token_type_ids=False)\n'
        "text = model.generate(**tokens, max_new_tokens=20)\n"
        "print(tokenizer.decode(text[0]))"
    )


def _quoted(text: str) -> str:
    """A YAML string: JSON's, in characters rather than in surrogates, which YAML does not pair."""
    return json.dumps(visible(text), ensure_ascii=False)


_ASSUMPTIONS: dict[str, Callable[[Assumption], str]] = {
    "Grade": lambda one: str(one.grade),
    "What has to be true": lambda one: Ready(f"**{markdown(one.title)}.** {prose(one.statement)}"),
    "Otherwise": lambda one: prose(one.otherwise),
}
