"""``userdp generate``: text, or a synthetic data set, sampled from a run's model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from userdp.cli.output import Answer, for_whom, print_note
from userdp.training.generation import GenerateConfig

if TYPE_CHECKING:
    from userdp.claims import Claim


def generate(
    run: Path,
    /,
    *,
    out: Path | None = None,
    records: int = 10,
    config: Annotated[GenerateConfig | None, Parameter(name="*")] = None,
    check: Path | None = None,
    check_tokens: int = 20,
    overwrite: bool = False,
    device: str = "auto",
) -> Answer:
    """Sample text from a run's model: post-processing, so the run's own epsilon covers it.

    With --out it becomes a synthetic data set in JSON Lines, a `text` per line, which userdp
    prepare reads as any other. Nothing more is charged, however much is sampled. Of a run that
    claims nothing, and with --check, the texts are for the operator only.

    Args:
        run: the folder of a finished run.
        out: a new JSON Lines file; without it the texts are printed.
        records: how many texts.
        config: see GenerateConfig.
        check: a user store: tell its operator which texts hold long stretches of its training
            text word for word, beside those of people the model never saw.
        check_tokens: tokens of the shortest stretch that counts.
        overwrite: replace the file at --out.
        device: auto (cuda where there is one, else cpu), cpu, cuda or cuda:N.
    """
    from userdp.api import generate as api

    made = api.generate(
        run,
        out=out,
        records=records,
        config=config,
        check=check,
        check_tokens=check_tokens,
        overwrite=overwrite,
        device=device,
    )
    result = made.to_dict()
    return Answer(values=result, parts=_parts(result, made.claim))


def _parts(result: dict[str, Any], claimed: Claim) -> Iterator[str]:
    """The texts on stdout, what is to be known of them on stderr."""
    for text in result.get("texts", ()):
        yield text
        yield "─" * 40
    where = f" in {result['out']}" if result["out"] else ""
    print_note(f"{result['records']} texts{where}. {_claim(claimed)}")
    print_note(for_whom(operator_only=result["operator_only"], why=_why(result, claimed)))
    checked = result.get("check", {})
    for name in ("train", "held-out-users"):
        if name in checked:
            part = checked[name]
            print_note(
                f"operator-only: {part['texts_with_a_copy']} of {checked['texts']} texts hold a "
                f"stretch of {checked['least_tokens']} tokens or more that stands in split {name} "
                f"({part['examples']:,} examples); the longest has {part['longest_tokens']}."
            )


def _claim(claimed: Claim) -> str:
    if not claimed.finite:
        return f"For this run {claimed.headline}; so none is claimed for its texts."
    return (
        "Sampling is post-processing, so that the run's own claim covers the texts, and nothing "
        f"more was charged: {claimed.headline}."
    )


def _why(result: dict[str, Any], claimed: Claim) -> str:
    """Why the texts are for whom they are for."""
    if not claimed.finite:
        return "the texts may repeat what people wrote, and no epsilon covers that"
    if result["operator_only"]:
        return (
            "which of these texts hold copies is an exact fact about people's text, and so is any "
            "choice among them; sample others without --check to hand on"
        )
    return "the run's claim covers the texts"
