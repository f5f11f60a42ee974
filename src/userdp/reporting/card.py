"""A model card in the format of the Hugging Face hub, from public facts only."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from userdp.core.errors import UseError
from userdp.core.vocabulary import epsilon_up
from userdp.reporting.assumptions import assumptions_of
from userdp.reporting.facts import Facts
from userdp.reporting.rendering import render_markdown, visible
from userdp.reporting.table import Table
from userdp.version import __version__

README = "README.md"
"""The name under which the hub shows a card."""
_PLAIN = r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,95}"
_NAME_ON_HUB = re.compile(f"({_PLAIN}/)?{_PLAIN}")
_LICENSE = re.compile(r"[a-z0-9][a-z0-9.\-]{0,63}")
_TAG = re.compile(r"[A-Za-z0-9][\w.:+\-]{0,63}")


@dataclass(frozen=True, kw_only=True, slots=True)
class CardOptions:
    """The operator's words on a model card, beside the public facts of the run.

    Args:
        base_model: name of the base model on the hub; by default as the run noted it.
        license: of the model, as the hub spells it: apache-2.0.
        dataset: names on the hub of the training data, if it is public.
        tag: for the card, beside its own.

    Raises:
        UseError: one of the operator's words is nothing that the hub knows.
    """

    base_model: str | None = None
    license: str | None = None
    dataset: Sequence[str] = ()
    tag: Sequence[str] = ()

    def __post_init__(self) -> None:
        for name in ("dataset", "tag"):  # in Python also one word
            if isinstance(word := getattr(self, name), str):
                object.__setattr__(self, name, (word,))
        for option, values, pattern, example in (
            ("--base-model", (self.base_model,), _NAME_ON_HUB, "openai-community/gpt2"),
            ("--license", (self.license,), _LICENSE, "apache-2.0"),
            ("--dataset", self.dataset, _NAME_ON_HUB, "HuggingFaceFW/fineweb"),
            ("--tag", self.tag, _TAG, "code"),
        ):
            for value in values:
                if value is not None and not pattern.fullmatch(value):
                    raise UseError(
                        f"{option} {value!r} is no name as the Hugging Face hub writes it: it "
                        "stands in the head of the model card, which the hub reads",
                        hint=f"for example {option} {example}",
                    )


def base_model_on_hub(run: Facts) -> str | None:
    """The name on the hub of the model that a run began from, if its ledger says that it is there.

    A folder's name is never one, whatever it looks like.
    """
    named = run.base.name
    sure = run.base.origin == "hub" or (run.base.origin == "memory" and "/" in named)
    return named if sure and _NAME_ON_HUB.fullmatch(named) else None


def render_model_card(
    run: Facts,
    card: CardOptions | None = None,
    *,
    files: Collection[str] = ("config.json", "tokenizer.json"),
) -> str:
    """``README.md`` of a run's released model: YAML front matter, then Markdown.

    Guarantee: it is a function of its arguments only. ``run`` holds nothing that the run's
    ε, or that of a release with a price of its own, does not cover; ``card`` nothing of anybody's
    text. Whatever the template prints is escaped, so that no name or setting becomes markup.

    Args:
        run: the public facts of the run.
        card: the operator's words.
        files: names of what is exported: the snippet loads the model by what is there.
    """
    card = card or CardOptions()
    constants = run.constants
    values = {
        "run": run,
        "files": files,
        "assumptions": assumptions_of([run]),
        "constants": Table(columns=("Constant", "Value"), rows=[r[:2] for r in constants.rows]),
        "verify_command": f"userdp verify {shlex.quote(run.name)}",
        "version": __version__,
    }
    text = render_markdown("model_card.md.j2", values)
    return f"---\n{_head(run, card, files).to_yaml()}\n---\n\n{text}"


def _head(run: Facts, card: CardOptions, files: Collection[str]) -> Any:
    """What the hub reads: the front matter."""
    from huggingface_hub import EvalResult, ModelCardData

    tags = ["differential-privacy", "user-level-privacy", "dp-sgd"] if run.private else []
    losses = [
        EvalResult(
            task_type="text-generation",
            dataset_type="private",
            dataset_name=visible(f"private text, {one.split}"),
            metric_type="loss",
            metric_name=f"mean loss per user, released at ε = {epsilon_up(one.epsilon)}",
            metric_value=one.told["model"]["user_loss"],
        )
        for one in run.released
    ]
    return ModelCardData(
        pipeline_tag="text-generation",
        library_name="transformers" if "config.json" in files else None,
        base_model=card.base_model or base_model_on_hub(run),
        license=card.license,
        datasets=list(card.dataset) or None,
        tags=list(dict.fromkeys(("userdp", *tags, *card.tag))),
        model_name=visible(run.name) if losses else None,
        eval_results=losses or None,
    )
