"""``userdp.generate``: text, or a synthetic data set, sampled from a run's model."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any

from userdp.claims import claim
from userdp.commands.arguments import folder_of, require_new
from userdp.commands.progress import shown
from userdp.core.codec import digest
from userdp.core.errors import Interrupted
from userdp.core.files import OPERATOR_FILE, SHAREABLE_FILE, write_file, write_json
from userdp.core.interrupts import on_interrupt
from userdp.core.stages import Progress
from userdp.data.overlap import longest_copies
from userdp.data.sources.input_files import GENERATED, provenance_of
from userdp.data.splits import Split
from userdp.data.store_tokenizer import StoreTokenizer
from userdp.data.user_store import UserStore
from userdp.ledger import RunFolder, RunRecord, StoreLedger
from userdp.training.sampled_texts import GenerateConfig, GeneratedText, sampled_texts


def generate(
    run: str | os.PathLike[str],
    *,
    out: str | Path | None = None,
    records: int = 10,
    check: UserStore | str | Path | None = None,
    check_tokens: int = 20,
    overwrite: bool = False,
    device: str = "auto",
    progress: Progress | None = None,
    **options: Annotated[Any, GenerateConfig],
) -> dict[str, Any]:
    """Sample text from a run's model; the run's claim covers it.

    With out it becomes a synthetic data set in JSON Lines, a `text` per line, which userdp prepare
    reads once each line names a user. Nothing more is charged, however much is sampled. The texts
    are for the operator only with check, and where the run claims nothing.

    Example::

        userdp generate run --records 1000 --out synthetic.jsonl

    Args:
        run: a finished run, or its folder.
        out: a new JSON Lines file; without it the texts are printed.
        records: how many texts.
        check: a store: count the texts that hold long stretches of its training text word for word,
            beside those of people the model never saw.
        check_tokens: tokens of the shortest stretch that counts.
        overwrite: replace the file at out.
        device: auto (cuda where there is one, else cpu), cpu, cuda or cuda:N.
        progress: receives the progress; by default a bar, or lines where stderr is no terminal.
        options: fields of `GenerateConfig`, such as ``temperature``.

    Returns:
        The claim that covers the texts, by name; how many there are, and how many of them ended by
        themselves; the ``texts``, or the file ``out`` that they are in; ``generated_by``, the mark
        that each record needs so that `userdp.prepare` knows generated text again; whether they are
        ``operator_only``; and what the ``check`` found.

    Raises:
        UseError: an argument is out of range, or the folder holds other weights than were released.
    """
    files = () if out is None else (Path(out), provenance_of(Path(out)))
    for file in files:
        require_new(file, overwrite=overwrite, name="synthetic.jsonl")
    path = folder_of(run)
    claimed = claim(RunRecord.read(path))
    store = None if check is None else UserStore.open(Path(check), fixed_graph=True)
    how = GenerateConfig(**options)
    texts: list[GeneratedText] = []
    with on_interrupt(Interrupted("before its end: no text was written")), shown(progress) as bar:
        bar.stage("sampling", records)
        for text in sampled_texts(path, how, records, device=device):
            texts.append(text)
            bar.at(len(texts))
        checked = None if store is None else _check(path, store, texts, check_tokens, bar)
    operator_only = not claimed.finite or check is not None
    writer = {GENERATED: f"userdp {digest(claimed.lineage)[:16]}"}
    written = [text.prompt + text.text for text in texts]
    if files:
        mode = OPERATOR_FILE if operator_only else SHAREABLE_FILE
        lines = "".join(json.dumps({"text": text, **writer}) + "\n" for text in written)
        write_json(files[1], {"lineage": claimed.lineage.plain, **writer}, mode=mode)
        write_file(files[0], lines.encode(), mode=mode)
    return {
        "run": path,
        **claimed.to_dict(),
        **writer,
        "records": len(texts),
        "ended": sum(text.ended for text in texts),
        "operator_only": operator_only,
        **({"out": files[0]} if files else {"out": None, "texts": written}),
        **({} if checked is None else {"check": checked}),
    }


def _check(
    run: Path, store: UserStore, texts: list[GeneratedText], least: int, progress: Progress
) -> dict[str, Any]:
    """Stretches that stand in the training text, and in that of people never trained on."""
    StoreLedger(store.path).look("generate --check")
    result: dict[str, Any] = {"least_tokens": least, "texts": len(texts)}
    # As the store would hold them, whose tokenizer may be another than the run's.
    ids = StoreTokenizer.load(store.tokenizer_path).encode([text.text for text in texts])
    for part in (store.split(Split.TRAIN), store.split(Split.HELD_OUT_USERS)):
        if examples := int(part.counts.sum()):
            progress.stage("checking", examples)
            lengths = longest_copies(part, ids, least=least, progress=progress.at)
            found = {"texts_with_a_copy": int((lengths > 0).sum())}
            found["longest_tokens"] = int(lengths.max(initial=0))
            result[str(part.name)] = {"examples": examples, **found}
    RunFolder(run).log({"kind": "verbatim check", **result})
    return result
