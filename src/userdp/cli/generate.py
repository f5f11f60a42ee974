"""``userdp generate``: text, or a synthetic data set, sampled from a run's model."""

from __future__ import annotations

import json as json_library
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from userdp.cli.output import Answer, for_whom, print_note
from userdp.cli.progress import StepBar
from userdp.codec import digest
from userdp.data.sources.provenance import GENERATED
from userdp.errors import UseError
from userdp.files import OPERATOR_FILE, SHAREABLE_FILE, require_place, write_file, write_json
from userdp.training.generation import GenerateConfig, GeneratedText, TextGenerator

if TYPE_CHECKING:
    from userdp.claim import Claim, Lineage


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
    """
    from userdp.claim import claim
    from userdp.claim.verify import require_released_weights
    from userdp.ledger import RunFolder, StoreLedger

    if out is not None:
        require_place(out, name="synthetic.jsonl")
        if out.exists() and not overwrite:
            raise UseError(f"{out} exists", hint="give --overwrite to replace it")
    claimed = claim(run)
    require_released_weights(RunFolder(run))
    from userdp.data.store import UserStore

    store = None if check is None else UserStore.open(check)
    generator = TextGenerator(run, config or GenerateConfig())
    texts: list[GeneratedText] = []
    with StepBar() as bar:
        bar.stage("sampling", records)
        for text in generator.texts(records):
            texts.append(text)
            bar.at(len(texts))
    result: dict[str, Any] = {
        **claimed.to_dict(),
        "run": str(run),
        "operator_only": not claimed.finite or check is not None,
        "records": len(texts),
        "ended": sum(text.ended for text in texts),
        "out": None if out is None else str(out),
    }
    if out is None:
        result["texts"] = [text.prompt + text.text for text in texts]
    else:
        mode = OPERATOR_FILE if result["operator_only"] else SHAREABLE_FILE
        _write(out, texts, claimed.lineage, mode=mode)
    if store is not None:
        StoreLedger(store.path).look("generate --check")
        checked = _check(store, texts, check_tokens)
        RunFolder(run).log({"kind": "verbatim check", **checked})
        result["check"] = checked
    return Answer(values=result, parts=_parts(result, claimed))


def _write(out: Path, texts: list[GeneratedText], lineage: Lineage, *, mode: int) -> None:
    """The texts, each with a word of the model that wrote it, and what that descends from."""
    model = {GENERATED: f"userdp {digest(lineage)[:16]}"}
    lines = (
        json_library.dumps({"text": text.prompt + text.text, **model}) + "\n" for text in texts
    )
    provenance = out.with_name(f"{out.name}.provenance.json")
    write_json(provenance, {"lineage": lineage.plain, **model}, mode=mode)
    write_file(out, "".join(lines).encode(), mode=mode)


def _check(store: Any, texts: list[GeneratedText], least: int) -> dict[str, Any]:
    """Stretches that stand in the training text, and in that of people never trained on."""
    from userdp.data.splits import Split
    from userdp.data.verbatim import longest_copies

    result: dict[str, Any] = {"least_tokens": least, "texts": len(texts)}
    ids = [text.tokens for text in texts]
    for name in (Split.TRAIN, Split.HELD_OUT_USERS):
        part = store.split(name)
        examples = int(part.counts.sum())
        if not examples:
            continue
        with StepBar() as bar:
            bar.stage("checking", examples)
            lengths = longest_copies(part, ids, least=least, progress=bar.at)
        result[str(name)] = {
            "examples": examples,
            "texts_with_a_copy": int((lengths > 0).sum()),
            "longest_tokens": int(lengths.max(initial=0)),
        }
    return result


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
