"""What reads each kind of file that a case of the corpus changes: its folder, and a call.

A reader runs as users' commands do. It may end in a right result or in one error of userdp's own.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

CORPUS = Path(__file__).parents[1] / "formats" / "corpus"
"""A store, its ledger, runs, plans and models."""


def nothing(folder: Path, file: str = "") -> None:
    """Nothing has to be there, or to follow what was changed."""


@dataclass(frozen=True, kw_only=True)
class Reader:
    """One kind of files.

    Args:
        make: writes the folder, with nothing wrong in it.
        read: reads all of it; it may not return a wrong result.
        mend: makes checksums fit the file that was changed.
    """

    make: Callable[[Path], object]
    read: Callable[[Path], object]
    mend: Callable[[Path, str], object] = nothing


def copies(*names: str, of: str = "") -> Callable[[Path], None]:
    """Writes files of the corpus."""

    def make(folder: Path) -> None:
        for name in names:
            shutil.copyfile(CORPUS / of / name, folder / name)

    return make


def chain(folder: Path, file: str) -> None:
    """Let each line of a ledger follow from the one before it, as far as lines are objects."""
    if not file.endswith("ledger.jsonl"):
        return
    previous, lines = "0" * 16, []
    for line in (folder / file).read_bytes().split(b"\n"):
        if line:
            with contextlib.suppress(ValueError, RecursionError):
                line = with_prev(line, previous)
            lines.append(line)
            previous = hashlib.sha256(line).hexdigest()[:16]
    (folder / file).write_bytes(b"\n".join([*lines, b""]))


def with_prev(line: bytes, previous: str) -> bytes:
    """A line that names the hash of the one before; all else in it stays as it is written."""
    values = json.loads(line)
    if not isinstance(values, dict):
        return line
    if isinstance(old := values.get("prev"), str):
        return line.replace(json.dumps(old).encode(), json.dumps(previous).encode())
    return line.rstrip().removesuffix(b"}") + f',"prev":"{previous}"}}'.encode()


# --- ledgers and runs


def read_chain(folder: Path) -> None:
    from userdp.ledger.journal import read

    lines = read(folder / "ledger.jsonl").lines
    known = read(CORPUS / "winner" / "ledger.jsonl").lines
    assert lines[:-1] == known[: len(lines[:-1])], "an edited line was read"


def make_run(folder: Path, of: str = "run") -> None:
    copies("ledger.jsonl", "plan.json", of=of)(folder)
    (folder / "train.toml").write_text('[train.learning]\nmodel = "new"\n')


def make_winner(folder: Path) -> None:
    make_run(folder, of="winner")


def read_run(folder: Path) -> None:
    from userdp.claims import claim
    from userdp.claims.verify import verify
    from userdp.ledger.run_folder import RunFolder
    from userdp.reporting import facts

    sound_claim(claim(folder))
    verify(folder)
    facts.read_run(folder)
    RunFolder(folder).read_train()


def sound_claim(claimed: Any) -> None:
    assert claimed.guarantee.epsilon >= 0
    assert 0 <= claimed.guarantee.delta <= 1
    assert claimed.headline


def read_store_ledger(folder: Path) -> None:
    from userdp.claims import claim
    from userdp.commands.budget_overview import overview
    from userdp.ledger import StoreLedger

    overview(StoreLedger(folder).history())
    sound_claim(claim(folder))


def make_operator(folder: Path) -> None:
    make_run(folder)
    step = {"kind": "step", "step": 1, "loss": 3.5, "seconds": 0.5, "units": 4}
    (folder / "operator.jsonl").write_text(json.dumps(step) + "\n")
    (folder / "audit").mkdir()


def read_operator(folder: Path) -> None:
    from userdp.commands.report import report

    report([folder], out=folder.with_name("out") / "report.html")


def read_plan(folder: Path) -> None:
    from userdp.plans import Plan

    plan = Plan.load(folder / "plan.json")
    plan.save(folder.with_name("out") / "plan.json")
    assert Plan.load(folder.with_name("out") / "plan.json") == plan, "another plan is saved"
    assert plan.guarantee().epsilon >= 0


# --- stores


def make_store(folder: Path) -> None:
    shutil.copytree(CORPUS / "store", folder, dirs_exist_ok=True)


def read_store(folder: Path) -> None:
    from userdp.data.exact_counts import describe
    from userdp.data.splits import Split
    from userdp.data.store_meta import is_store
    from userdp.data.user_store import UserStore, require_intact, verify_store

    is_store(folder)
    sound = not verify_store(folder)
    store = UserStore.open(folder, fixed_graph=True)
    require_intact(store)
    describe(store)
    if not sound:  # what is damaged is told, and need not be read
        return
    for split in Split:
        part = store.split(split)
        for user, count in enumerate(part.counts.tolist()):
            assert len(part.gather(np.full(count, user), np.arange(count))) == count
    store.user_ids()


def read_tokenizer(folder: Path) -> None:
    from userdp.data.store_tokenizer import StoreTokenizer

    tokenizer = StoreTokenizer.load(folder)
    tokens = tokenizer.encode(["w1 w2 w3", "日本 🙂", ""])
    assert max((max(row) for row in tokens if row), default=0) < tokenizer.vocab_size


def make_records(folder: Path) -> None:
    lines = [json.dumps({"user": user, "text": "w1 w2 w3"}) for user in "abc"]
    (folder / "a.jsonl").write_text("\n".join(lines))


def read_records(folder: Path) -> None:
    from userdp.data.pipeline import prepare_store
    from userdp.data.sources import SourceOptions, open_source
    from userdp.data.store_tokenizer import StoreTokenizer
    from userdp.data.user_store import UserStore

    source = open_source([str(folder)], kind="jsonl", options=SourceOptions())
    out = folder.with_name("out") / "store"
    meta = prepare_store(source, out, tokenizer=StoreTokenizer.load(), seq_len=16)
    assert meta.totals["records_read"] == meta.totals["records_stored"] + sum(meta.drops.values())
    users = UserStore.open(out, fixed_graph=True).user_ids()
    assert len(set(users)) == len(users), "a user is there twice"


# --- models


def read_weights(folder: Path) -> None:
    from userdp.claims.verify import verify
    from userdp.claims.weights import digest_of

    digest, checked = digest_of(folder), verify(folder)
    known = digest_of(CORPUS / "winner" / "model")
    assert checked.problems or digest == known, "verified, and the tensors are others"


READERS = {
    "jsonl": Reader(make=make_records, read=read_records),
    "ledger-bytes": Reader(make=copies("ledger.jsonl", of="winner"), read=read_chain),
    "operator": Reader(make=make_operator, read=read_operator),
    "plan": Reader(make=copies("plan.json", of="run"), read=read_plan),
    "run": Reader(make=make_run, read=read_run, mend=chain),
    "store": Reader(make=make_store, read=read_store),
    "store-ledger": Reader(make=make_store, read=read_store_ledger, mend=chain),
    "tokenizer": Reader(make=copies("tokenizer.json", of="run/model"), read=read_tokenizer),
    "weights": Reader(make=copies("model.safetensors", of="winner/model"), read=read_weights),
    "winner": Reader(make=make_winner, read=read_run, mend=chain),
}
