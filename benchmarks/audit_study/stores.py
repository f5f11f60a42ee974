"""The part of each text that takes part, and its store."""

from __future__ import annotations

import gzip
import json
import random
from collections import defaultdict
from pathlib import Path

from benchmarks.audit_study.setting import CHARACTERS, RECORDS, SEQ_LEN, TEXTS, WHOLE


def prepare(work: Path, data: Path) -> None:
    """The part of each text that takes part, and its store."""
    from userdp.data.prepare import prepare_store
    from userdp.data.sources import open_source
    from userdp.data.tokenize import StoreTokenizer

    work.mkdir(parents=True, exist_ok=True)
    for text in (*TEXTS, WHOLE):
        if (work / text).exists():
            continue
        people: dict[str, list[str]] = defaultdict(list)
        with gzip.open(
            data / f"{text.removesuffix('-whole')}.jsonl.gz", "rt", encoding="utf-8"
        ) as file:
            for line in file:
                record = json.loads(line)
                people[record["user"]].append(record["text"][:CHARACTERS])
        part = work / f"{text}.jsonl"
        with part.open("w", encoding="utf-8") as out:
            for user, records in people.items():
                if len(records) >= RECORDS:
                    most = len(records) if text == WHOLE else RECORDS
                    for record in random.Random(user).sample(records, most):
                        out.write(json.dumps({"user": user, "text": record}) + "\n")
        prepare_store(
            open_source([str(part)], kind="jsonl"),
            work / text,
            tokenizer=StoreTokenizer.load(),
            seq_len=SEQ_LEN,
            held_out_users=0.5,
            held_out_examples=0.5,
        )
