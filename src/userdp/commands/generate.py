"""``userdp.generate``: text, or a synthetic data set, sampled from a run's model."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from userdp.claims import Claim, claim
from userdp.commands.answers import INNER, Answer, folder_of
from userdp.commands.progress import shown
from userdp.core.codec import digest
from userdp.core.files import OPERATOR_FILE, SHAREABLE_FILE, require_new, write_file, write_json
from userdp.core.interrupts import told
from userdp.core.stages import Progress
from userdp.data.sources.input_files import GENERATED, provenance_of
from userdp.data.splits import Split
from userdp.data.user_store import UserStore
from userdp.data.verbatim import longest_copies
from userdp.ledger import RunFolder, RunRecord, StoreLedger
from userdp.training.sampled_texts import GenerateConfig, GeneratedText, sampled_texts


@dataclass(frozen=True, kw_only=True, slots=True)
class Generated(Answer):
    """Texts that a model wrote.

    Args:
        run: its folder.
        claim: that covers them.
        texts: each with its prompt.
        records: how many.
        ended: how many of them end by themselves.
        operator_only: whether nothing covers them, or people's text was read to check them.
        out: the file they were written to, if any.
        check: how many hold stretches of a store's text; operator-only.
    """

    run: Path
    claim: Claim = field(metadata=INNER)
    texts: tuple[str, ...]
    records: int
    ended: int
    operator_only: bool
    out: Path | None
    check: dict[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """The object of ``userdp generate --json``; texts that are in a file are not repeated."""
        values = super(Generated, self).to_dict()
        return {key: one for key, one in values.items() if key != "texts" or self.out is None}

    def rows(self) -> list[dict[str, Any]]:
        """One for each text; it says what wrote it, so that `userdp.prepare` knows it again."""
        return [{"text": text, **self.writer} for text in self.texts]

    @property
    def writer(self) -> dict[str, str]:
        """The mark of texts that the model wrote."""
        return {GENERATED: f"userdp {digest(self.claim.lineage)[:16]}"}


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
) -> Generated:
    """Sample text from a run's model; the run's claim covers it.

    With out it becomes a synthetic data set in JSON Lines, a `text` per line, which userdp prepare
    reads as any other. Nothing more is charged, however much is sampled. The texts
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

    Raises:
        UseError: an argument is out of range, or the folder holds other weights than were released.
    """
    files = () if out is None else (Path(out), provenance_of(Path(out)))
    for file in files:
        require_new(file, overwrite=overwrite, name="synthetic.jsonl")
    path = folder_of(run)
    record = RunRecord.read(path)
    claimed = claim(record)
    store = None if check is None else UserStore.open(Path(check))
    how = GenerateConfig(**options)
    texts: list[GeneratedText] = []
    with told("before its end: no text was written", resume=False), shown(progress) as bar:
        bar.stage("sampling", records)
        for text in sampled_texts(path, how, records, device=device):
            texts.append(text)
            bar.at(len(texts))
        checked = None if store is None else _check(path, store, texts, check_tokens, bar)
    made = Generated(
        run=path,
        claim=claimed,
        texts=tuple(text.prompt + text.text for text in texts),
        records=len(texts),
        ended=sum(text.ended for text in texts),
        operator_only=not claimed.finite or check is not None,
        out=files[0] if files else None,
        check=checked,
    )
    if files:
        mode = OPERATOR_FILE if made.operator_only else SHAREABLE_FILE
        lines = "".join(json.dumps(row) + "\n" for row in made.rows())
        write_json(files[1], {"lineage": claimed.lineage.plain, **made.writer}, mode=mode)
        write_file(files[0], lines.encode(), mode=mode)
    return made


def _check(
    run: Path, store: UserStore, texts: list[GeneratedText], least: int, progress: Progress
) -> dict[str, Any]:
    """Stretches that stand in the training text, and in that of people never trained on."""
    StoreLedger(store.path).look("generate --check")
    result: dict[str, Any] = {"least_tokens": least, "texts": len(texts)}
    ids = [text.tokens for text in texts]
    for part in (store.split(Split.TRAIN), store.split(Split.HELD_OUT_USERS)):
        if examples := int(part.counts.sum()):
            progress.stage("checking", examples)
            lengths = longest_copies(part, ids, least=least, progress=progress.at)
            found = {"texts_with_a_copy": int((lengths > 0).sum())}
            found["longest_tokens"] = int(lengths.max(initial=0))
            result[str(part.name)] = {"examples": examples, **found}
    RunFolder(run).log({"kind": "verbatim check", **result})
    return result
