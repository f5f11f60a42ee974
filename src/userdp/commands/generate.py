"""``userdp.generate``: text, or a synthetic data set, sampled from a run's model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from userdp.claims import Claim, Lineage, claim
from userdp.claims.verify import require_released_files
from userdp.codec import digest
from userdp.commands.progress import say, shown
from userdp.commands.run import Place, folder_of, opened
from userdp.commands.words import for_whom
from userdp.data.progress import Progress
from userdp.data.sources.rows import GENERATED
from userdp.data.splits import Split
from userdp.data.store import UserStore
from userdp.data.verbatim import longest_copies
from userdp.files import OPERATOR_FILE, SHAREABLE_FILE, require_new, write_file, write_json
from userdp.interrupts import told
from userdp.ledger import RunFolder, StoreLedger
from userdp.training.generation import GenerateConfig, GeneratedText, sampled_texts

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, kw_only=True, slots=True)
class Generated:
    """Texts that a model wrote.

    Args:
        run: its folder.
        claim: that covers them.
        texts: each with its prompt.
        ended: how many of them end by themselves.
        operator_only: whether nothing covers them, or people's text was read to check them.
        out: the file they were written to, if any.
        check: how many hold stretches of a store's text; operator-only.
    """

    run: Path
    claim: Claim
    texts: tuple[str, ...]
    ended: int
    operator_only: bool
    out: Path | None = None
    check: dict[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """What ``userdp generate --json`` prints."""
        return {
            **self.claim.to_dict(),
            "run": str(self.run),
            "operator_only": self.operator_only,
            "records": len(self.texts),
            "ended": self.ended,
            "out": None if self.out is None else str(self.out),
            **({"texts": list(self.texts)} if self.out is None else {}),
            **({} if self.check is None else {"check": self.check}),
        }

    def to_pandas(self) -> pd.DataFrame:
        """One row a text; it says what wrote it, so that `userdp.prepare` knows it again."""
        import pandas as pd

        return pd.DataFrame({"text": self.texts, GENERATED: _writer(self.claim.lineage)})


def generate(
    run: Place,
    *,
    out: str | Path | None = None,
    records: int = 10,
    config: GenerateConfig | None = None,
    check: UserStore | str | Path | None = None,
    check_tokens: int = 20,
    overwrite: bool = False,
    device: str = "auto",
    progress: Progress | None = None,
    **options: Any,
) -> Generated:
    """Sample text from a run's model: post-processing, so the run's own claim covers it.

    With out it becomes a synthetic data set in JSON Lines, a `text` per line, which userdp prepare
    reads as any other. Nothing more is charged, however much is sampled. Of a run that claims
    nothing, and with check, the texts are for the operator only.

    Args:
        run: a finished run, or its folder.
        out: a new JSON Lines file; without it the texts are printed.
        records: how many texts.
        config: how they are drawn; in its place, its fields as keywords.
        check: a store: count the texts that hold long stretches of its training text word for word,
            beside those of people the model never saw.
        check_tokens: tokens of the shortest stretch that counts.
        overwrite: replace the file at out.
        device: auto (cuda where there is one, else cpu), cpu, cuda or cuda:N.
        progress: is told how far it is; by default a bar, or lines where stderr is no terminal.
        options: fields of `GenerateConfig`, such as ``temperature``.

    Raises:
        UseError: an argument is out of range, or the folder holds other weights than were released.
    """
    place = None if out is None else Path(out)
    if place is not None:
        require_new(place, overwrite=overwrite, name="synthetic.jsonl")
        require_new(_provenance(place), overwrite=overwrite)
    path = folder_of(run)
    claimed = claim(path)
    require_released_files(RunFolder(path))
    store = None if check is None else opened(check)
    how = config or GenerateConfig(**options)
    texts: list[GeneratedText] = []
    with told("before its end: no text was written", resume=False), shown(progress) as bar:
        bar.stage("sampling", records)
        for text in sampled_texts(path, how, records, device=device):
            texts.append(text)
            bar.at(len(texts))
        checked = None if store is None else _check(path, store, texts, check_tokens, bar)
    result = Generated(
        run=path,
        claim=claimed,
        texts=tuple(text.prompt + text.text for text in texts),
        ended=sum(text.ended for text in texts),
        operator_only=not claimed.finite or check is not None,
        out=place,
        check=checked,
    )
    if place is not None:
        _write(place, result)
    return result


def _write(out: Path, made: Generated) -> None:
    """The texts, each with a word of the model that wrote it, and what that descends from."""
    mode = OPERATOR_FILE if made.operator_only else SHAREABLE_FILE
    model = {GENERATED: _writer(made.claim.lineage)}
    lines = (json.dumps({"text": text, **model}) + "\n" for text in made.texts)
    write_json(_provenance(out), {"lineage": made.claim.lineage.plain, **model}, mode=mode)
    write_file(out, "".join(lines).encode(), mode=mode)


def _provenance(out: Path) -> Path:
    """Where it stands what the texts in ``out`` descend from."""
    return out.with_name(f"{out.name}.provenance.json")


def _writer(lineage: Lineage) -> str:
    return f"userdp {digest(lineage)[:16]}"


def _check(
    run: Path, store: UserStore, texts: list[GeneratedText], least: int, progress: Progress
) -> dict[str, Any]:
    """Stretches that stand in the training text, and in that of people never trained on."""
    StoreLedger(store.path).look("generate --check")
    result: dict[str, Any] = {"least_tokens": least, "texts": len(texts)}
    ids = [text.tokens for text in texts]
    for name in (Split.TRAIN, Split.HELD_OUT_USERS):
        part = store.split(name)
        examples = int(part.counts.sum())
        if not examples:
            continue
        progress.stage("checking", examples)
        lengths = longest_copies(part, ids, least=least, progress=progress.at)
        result[str(name)] = {
            "examples": examples,
            "texts_with_a_copy": int((lengths > 0).sum()),
            "longest_tokens": int(lengths.max(initial=0)),
        }
    RunFolder(run).log({"kind": "verbatim check", **result})
    return result


def in_words(made: Generated) -> Iterator[str]:
    """The texts on stdout, what is to be known of them on stderr."""
    if made.out is None:
        for text in made.texts:
            yield text
            yield "─" * 40
    claimed, where = made.claim, "" if made.out is None else f" in {made.out}"
    if not claimed.finite:
        covered = f"For this run {claimed.headline}; so none is claimed for its texts."
        why = "the texts may repeat what people wrote, and no epsilon covers that"
    else:
        covered = (
            "Sampling is post-processing, so that the run's own claim covers the texts, and "
            f"nothing more was charged: {claimed.headline}."
        )
        why = "the run's claim covers the texts"
        if made.operator_only:
            why = (
                "which of these texts hold copies is an exact fact about people's text, and so is "
                "any choice among them; sample others without --check to hand on"
            )
    say(f"{len(made.texts)} texts{where}. {covered}")
    say(for_whom(operator_only=made.operator_only, why=why))
    checked = made.check or {}
    for name in ("train", "held-out-users"):
        if name in checked:
            part = checked[name]
            say(
                f"operator-only: {part['texts_with_a_copy']} of {checked['texts']} texts hold a "
                f"stretch of {checked['least_tokens']} tokens or more that stands in split {name} "
                f"({part['examples']:,} examples); the longest has {part['longest_tokens']}."
            )
