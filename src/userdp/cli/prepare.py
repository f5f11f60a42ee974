"""``userdp prepare``: records to a user store."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from userdp.cli.output import Answer
from userdp.data.sources import InputOptions
from userdp.reporting.table import Table, table_of


def prepare(
    paths: list[str] | None = None,
    /,
    *,
    out: Path,
    source: str | None = None,
    tokenizer: Path | None = None,
    seq_len: int = 128,
    held_out_users: float = 0.1,
    held_out_examples: float = 0.05,
    split: Literal["hash", "given", "first-part"] | None = None,
    owners: Literal["first", "greedy"] = "first",
    records_per_user: int | None = None,
    input_options: Annotated[InputOptions, Parameter(name="*", group="Input")] | None = None,
    engine: Literal["duckdb", "spark"] = "duckdb",
    memory_limit: str = "1GB",
    append: bool = False,
    overwrite: bool = False,
    ledger: Path | None = None,
) -> Answer:
    """Turn records into a user store, or add them to one.

    Every record is stored or counted as dropped, with the reason. The store is written whole or
    not at all. Killed, the same command goes on where it was (JSON Lines and Parquet files). The
    store's counts are for its operator: they are not differentially private.

    Args:
        paths: files, folders or patterns; for hf a name on the hub; for docstrings, names of
            installed packages, or stdlib.
        out: the store's folder.
        source: jsonl, csv, parquet, hf, mbox, maildir, git, leaf, stackoverflow, c4, ccnews,
            folder, conversations or docstrings; by default told from the paths, and for tables from
            the names of their fields. JSON Lines, CSV and Parquet may be given together.
        tokenizer: tokenizer.json or a folder that holds one; by default the bundled model's. It
            must come from public text.
        seq_len: most tokens of an example.
        held_out_users: fraction of users of whom nothing is trained on.
        held_out_examples: fraction of the other users' records that are not trained on.
        split: hash (that fraction), given (only by the source or --held-out-from) or first-part
            (a tenth of each user, at most 32); by default the papers' for stackoverflow, c4 and
            ccnews, else hash.
        owners: under first, a record of several users goes to its first owner only; under greedy,
            it is kept if all its owners are below --records-per-user (fixed-graph adjacency, ELS
            only).
        records_per_user: the bound of --owners greedy.
        input_options: see below.
        engine: DuckDB in this process, or Apache Spark on many (needs pyspark and Java). The
            store's content is the same.
        memory_limit: most memory of the grouping stage, for instance 1GB (of Spark's Java, on this
            machine); the rest goes to disk beside the store.
        append: add to the store that lies there, which keeps its tokenizer, length and fractions.
        overwrite: replace the store that lies there; its privacy ledger is kept.
        ledger: a privacy ledger that other stores of the same people name too, so that what they
            are charged adds up: a file, begun with the first charge. In a configuration file,
            ledger = "required" refuses to prepare a store without one.
    """
    from userdp.commands import prepare as api

    store = api.prepare(
        paths,
        out=out,
        source=source,
        tokenizer=tokenizer,
        seq_len=seq_len,
        held_out_users=held_out_users,
        held_out_examples=held_out_examples,
        split=split,
        owners=owners,
        records_per_user=records_per_user,
        engine=engine,
        memory_limit=memory_limit,
        append=append,
        overwrite=overwrite,
        ledger=ledger,
        **asdict(input_options or InputOptions()),
    )
    result = {"store": str(out), "operator_only": True, **store.meta.to_dict()}
    return Answer(values=result, parts=_parts(result))


def _parts(result: dict[str, Any]) -> Iterator[Table | str]:
    from userdp.data.near_ids import near_hint

    totals = result["totals"]
    yield Table(
        caption="records",
        rows=[
            ("read", f"{totals['records_read']:,}"),
            ("stored", f"{totals['records_stored']:,}"),
            *((f"dropped: {why}", f"{count:,}") for why, count in result["drops"].items()),
            *(
                (f"examples dropped: {why}", f"{count:,}")
                for why, count in result["example_drops"].items()
            ),
        ],
    )
    yield table_of(
        totals["splits"].items(),
        {
            "split": lambda part: part[0],
            "users": lambda part: part[1]["users"],
            "examples": lambda part: part[1]["examples"],
            "tokens": lambda part: part[1]["tokens"],
        },
    )
    if result["loss_mask"]:
        yield "Read as conversations: the loss counts what the assistant says, and nothing else."
    hint = near_hint(totals["near_colliding_users"])
    if hint is not None:
        yield f"warning: {hint}"
    yield (
        f"Store: {result['store']} (store id {result['store_id'][:8]}…). "
        "These counts are exact: operator-only, not differentially private."
    )
