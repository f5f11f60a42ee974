"""``userdp generate``: text, or a synthetic data set, sampled from a run's model."""

from __future__ import annotations

import json as json_library
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from userdp.claim.lineage import Lineage
from userdp.cli.output import Answer, print_note
from userdp.cli.progress import StepBar
from userdp.codec import digest
from userdp.data.sources.jsonl import GENERATED
from userdp.errors import UseError
from userdp.files import require_place, write_file, write_json
from userdp.training.generation import GenerateConfig, GeneratedText, TextGenerator
from userdp.vocabulary import delta_up, round_up


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
    prepare reads as any other. Nothing more is charged, however much is sampled.

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

    if out is not None:
        require_place(out, name="synthetic.jsonl")
        if out.exists() and not overwrite:
            raise UseError(f"{out} exists", hint="give --overwrite to replace it")
    claimed = claim(run)
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
        **asdict(claimed.guarantee),
        "run": str(run),
        "records": len(texts),
        "ended": sum(text.ended for text in texts),
        "out": None if out is None else str(out),
    }
    if out is None:
        result["texts"] = [text.prompt + text.text for text in texts]
    else:
        _write(out, texts, claimed.lineage)
    if store is not None:
        from userdp.ledger import RunFolder, StoreLedger

        StoreLedger(store.path).look("generate --check")
        checked = _check(store, texts, check_tokens)
        RunFolder(run).log({"kind": "verbatim check", **checked})
        result["operator_only"] = checked
    return Answer(values=result, parts=_parts(result))


def _write(out: Path, texts: list[GeneratedText], lineage: Lineage) -> None:
    """The texts, each with a word of the model that wrote it, and what that descends from."""
    model = {GENERATED: f"userdp {digest(lineage)[:16]}"}
    lines = (
        json_library.dumps({"text": text.prompt + text.text, **model}) + "\n" for text in texts
    )
    write_json(out.with_name(f"{out.name}.provenance.json"), {"lineage": lineage.plain})
    write_file(out, "".join(lines).encode())


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


def _parts(result: dict[str, Any]) -> Iterator[str]:
    """The texts on stdout, what is to be known of them on stderr."""
    for text in result.get("texts", ()):
        yield text
        yield "─" * 40
    where = f" in {result['out']}" if result["out"] else ""
    print_note(f"{result['records']} texts{where}. {_claim(result)}")
    checked = result.get("operator_only", {})
    for name in ("train", "held-out-users"):
        if name in checked:
            part = checked[name]
            print_note(
                f"operator-only: {part['texts_with_a_copy']} of {checked['texts']} texts hold a "
                f"stretch of {checked['least_tokens']} tokens or more that stands in split {name} "
                f"({part['examples']:,} examples); the longest has {part['longest_tokens']}."
            )


def _claim(result: dict[str, Any]) -> str:
    epsilon = float(result["epsilon"])
    if epsilon == float("inf"):
        return "No epsilon is claimed for this run, so none for its texts: they may repeat people."
    return (
        f"Post-processing of the run: together with it ({round_up(epsilon)}, "
        f"{delta_up(result['delta'])})-DP per {result['unit']}, {result['adjacency']}; "
        "nothing more was charged."
    )
