"""``userdp store dedup``: take out of a public corpus what overlaps with private records."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from userdp.cli.output import Answer
from userdp.commands.progress import shown
from userdp.commands.source_options import source_options
from userdp.data.overlap import OverlapRules, PrivateTexts, filter_file, provenance_of
from userdp.data.sources import InputOptions
from userdp.errors import UseError
from userdp.files import require_new
from userdp.reporting.table import Table, table_of

if TYPE_CHECKING:
    from userdp.data.progress import Progress
    from userdp.data.records import Tally
    from userdp.data.sources import Source


def dedup(
    public: Path,
    private: list[str],
    /,
    *,
    out: Path,
    source: str | None = None,
    store: Path | None = None,
    rules: Annotated[OverlapRules | None, Parameter(name="*", group="Rules")] = None,
    domain: list[str] | None = None,
    urls: Path | None = None,
    public_text_field: str = "text",
    public_url_field: str = "url",
    input_options: Annotated[InputOptions, Parameter(name="*", group="Input")] | None = None,
    overwrite: bool = False,
) -> Answer:
    """Remove from a public corpus what overlaps with private records, as C4 became C4--.

    First near-duplicates (MinHash proposes, exact similarity decides), then listed sites and URLs.
    What is left depends on the private records, and so does a model trained on it: no epsilon of a
    later run covers that. OUT.provenance.json says so, and stores made of OUT repeat it.

    Args:
        public: the corpus, JSON Lines (gzip or plain).
        private: the private records: files, folders or patterns, as for userdp prepare.
        out: the filtered corpus, a file for the operator only (mode 0600); gzip if its name
            ends in .gz.
        source: the kind of the private records; by default told from the paths.
        store: the user store of the private records, whose id then names them in the provenance;
            a new random name by default.
        rules: see OverlapRules.
        domain: a registered domain to remove, as stackoverflow.com; may be given several times.
        urls: a file of URLs to remove, one a line.
        public_text_field: the field of a public document's text.
        public_url_field: the field of its URL.
        input_options: how the private records are read.
        overwrite: replace the file at --out.
    """
    from userdp.data.meta import read_meta
    from userdp.data.records import Tally
    from userdp.data.sources import open_source
    from userdp.ledger import StoreLedger

    if not public.is_file():
        raise UseError(f"there is no public corpus at {public}")
    if out.exists() and out.samefile(public):
        raise UseError(f"--out is the public corpus itself, {public}, which stays as it is")
    require_new(out, overwrite=overwrite, name="clean.jsonl.gz")
    require_new(provenance_of(out), overwrite=overwrite)
    domains = _domains(domain or [])
    listed = _urls(urls)
    name = read_meta(store).store_id if store else secrets.token_hex(16)
    if store is not None:
        StoreLedger(store).look("dedup")
    records = open_source(private, kind=source, options=source_options(input_options, None))
    tally = Tally()
    with shown() as bar:
        texts = PrivateTexts(_texts(records, tally, bar), rules or OverlapRules())
        if not len(texts):
            raise UseError(
                f"none of {tally.records_read} private records has a text: nothing could overlap",
                hint="check --user, --text and the paths",
            )
        counts = filter_file(
            public,
            out,
            texts,
            private_content=name,
            domains=domains,
            urls=listed,
            text_field=public_text_field,
            url_field=public_url_field,
            progress=bar,
        )
    result: dict[str, Any] = {
        "public": str(public),
        "out": str(out),
        "provenance": str(provenance_of(out)),
        "private_data": name,
        "private_records": len(texts),
        "private_drops": {str(reason): n for reason, n in tally.drops.items()},
        "operator_only": True,
        **asdict(counts),
        "near_duplicates": counts.near_duplicates,
        "on_sites": counts.on_sites,
    }
    return Answer(values=result, parts=_parts(result))


def _texts(source: Source, tally: Tally, progress: Progress) -> Iterator[str]:
    progress.stage("signatures", source.size)
    for record in source.records(tally, progress):
        if record.unusable is not None:
            tally.drop(record.unusable)
        else:
            yield record.text.decode("utf-8", "replace")


def _domains(given: list[str]) -> frozenset[bytes]:
    if not given:
        return frozenset()
    from userdp.data.sources.web import BaseDomain

    domain_of = BaseDomain()
    for name in given:
        if domain_of(f"https://{name}/") != name.encode():
            raise UseError(
                f"{name!r} is not a registered domain, so that no document's would equal it",
                hint="give it as stackoverflow.com: lower case, without scheme or subdomain",
            )
    return frozenset(name.encode() for name in given)


def _urls(path: Path | None) -> frozenset[str]:
    if path is None:
        return frozenset()
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UseError(f"cannot read URLs from {path}: {error}") from error
    return frozenset(line.strip() for line in lines if line.strip())


def _parts(result: dict[str, Any]) -> Iterator[Table | str]:
    read, without = result["documents"], result["without_text"]
    stages = (
        ("documents read", None, read),
        ("without a text", without, read - without),
        (
            f"near-duplicates ({result['candidates']:,} candidates)",
            result["near_duplicates"],
            result["after_duplicates"],
        ),
        ("listed sites and URLs", result["on_sites"], result["after_sites"]),
    )
    yield table_of(
        stages,
        {"stage": lambda one: one[0], "removed": lambda one: one[1], "left": lambda one: one[2]},
    )
    yield (
        f"{result['out']}, against {result['private_records']:,} private records. What is left "
        "depends on them, and no epsilon of a run covers that. Counts are operator-only."
    )
