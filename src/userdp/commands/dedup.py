"""``userdp.dedup``: take out of a public corpus what overlaps with private records."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from userdp.commands.arguments import require_new
from userdp.commands.progress import shown
from userdp.core.errors import UseError
from userdp.core.stages import Progress
from userdp.data.overlap import (
    OverlapRules,
    PrivateTexts,
    PublicCorpus,
    filter_file,
)
from userdp.data.records import Tally
from userdp.data.sources import InputOptions, Source, open_source
from userdp.data.sources.input_files import provenance_of
from userdp.data.sources.source import SourceOptions
from userdp.data.store_meta import read_meta
from userdp.ledger import StoreLedger

_RULES, _INPUT = OverlapRules(), InputOptions()


def dedup(
    public: str | os.PathLike[str],
    *,
    private: Sequence[str],
    out: str | os.PathLike[str],
    source: str | None = None,
    store: str | os.PathLike[str] | None = None,
    domain: Sequence[str] = (),
    text: str = "text",
    url: str = "url",
    urls: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    rules: OverlapRules = _RULES,
    input: InputOptions = _INPUT,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Remove from a public corpus what overlaps with private text.

    First near-duplicates (by the similarity of their n-grams), then listed sites and URLs.
    What is left depends on the private records, and so does a model trained on it: no epsilon of a
    later run covers that. OUT.provenance.json says so, and stores made of OUT repeat it.

    Example::

        userdp store dedup public.jsonl.gz --private mail.jsonl.gz --out clean.jsonl.gz

    Args:
        public: the corpus, JSON Lines (gzip or plain).
        private: the private records: files, folders or patterns, as for userdp prepare.
        out: the filtered corpus, a file for the operator only (mode 0600); gzip if its name
            ends in .gz.
        source: the kind of the private records; by default told from the paths.
        store: the user store of the private records, whose id then names them in the provenance;
            a new random name by default.
        domain: a registered domain to remove, as stackoverflow.com; may be given several times.
        text: the field of a public document's text.
        url: the field of its URL.
        urls: a file of URLs to remove, one a line.
        overwrite: replace the file at out.
        rules: what counts as overlap.
        input: how the private records are read.
        progress: receives the progress; by default a bar, or lines where stderr is no terminal.

    Returns:
        How many documents each stage removed, and where they are: operator-only.

    Raises:
        UseError: an argument is out of range, or no private record has a text.
    """
    corpus, place = Path(public), Path(out)
    if not corpus.is_file():
        raise UseError(f"there is no public corpus at {corpus}")
    if place.exists() and place.samefile(corpus):
        raise UseError(f"--out is the public corpus itself, {corpus}, which stays as it is")
    for file in (place, provenance_of(place)):
        require_new(file, overwrite=overwrite, name="clean.jsonl.gz")
    name = secrets.token_hex(16)
    published = PublicCorpus(text=text, url=url, domains=_domains(domain), urls=_urls(urls))
    if store is not None:
        name = read_meta(Path(store)).store_id
        StoreLedger(Path(store)).look("dedup")
    paths = [private] if isinstance(private, str) else list(private)
    options = SourceOptions(**asdict(input))
    records, tally = open_source(paths, kind=source, options=options), Tally()
    with shown(progress) as bar:
        texts = PrivateTexts(_texts(records, tally, bar), rules)
        if not len(texts):
            raise UseError(
                f"none of {tally.records_read} private records has a text: nothing could overlap",
                hint="check --set input.user=…, input.text=… and the paths",
            )
        counts = filter_file(corpus, place, texts, published, private_content=name, progress=bar)
    places = {"public": corpus, "out": place, "provenance": provenance_of(place)}
    read_here = {"private_data": name, "private_records": len(texts), "private_drops": tally.drops}
    removed = {"near_duplicates": counts.near_duplicates, "on_sites": counts.on_sites}
    return {**places, **read_here, "operator_only": True, **asdict(counts), **removed}


def _texts(source: Source, tally: Tally, progress: Progress) -> Iterator[str]:
    progress.stage("signatures", source.size)
    for record in source.records(tally, progress):
        yield record.text.decode("utf-8", "replace")


def _domains(given: Sequence[str]) -> frozenset[bytes]:
    if not given:
        return frozenset()
    from userdp.data.sources.paper_datasets import domain_of

    for name in given:
        if domain_of(f"https://{name}/") != name.encode():
            raise UseError(
                f"{name!r} is not a registered domain, so that no document's would equal it",
                hint="give it as stackoverflow.com: lower case, without scheme or subdomain",
            )
    return frozenset(name.encode() for name in given)


def _urls(path: str | os.PathLike[str] | None) -> frozenset[str]:
    if path is None:
        return frozenset()
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UseError(f"cannot read URLs from {path}: {error}") from error
    return frozenset(line.strip() for line in lines if line.strip())
