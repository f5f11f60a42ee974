"""Run folders without a model: a step is its line in the ledger."""

import hashlib
import json
import shutil
from dataclasses import replace
from types import SimpleNamespace

from tests.plans import uls_plan
from userdp.claims.lineage import Lineage
from userdp.data.meta import FORMAT_VERSION, State, StateKind, StoreMeta, read_meta
from userdp.data.splits import Split
from userdp.data.user_store import seal
from userdp.plans import StepRecord
from userdp.training.config import PrivateOptions
from userdp.training.open_run import Training, open_run

PLAN = uls_plan()


class Killed(BaseException):
    """Stands for a process that is no more."""


_NOTHING = {"users": 0, "examples": 0, "tokens": 0}
META = StoreMeta(
    format_version=FORMAT_VERSION,
    store_id="people",
    seq_len=8,
    vocab_size=32,
    end_of_text_id=None,
    tokenizer_sha256=hashlib.sha256(b"{}").hexdigest(),
    content_sha256="0" * 64,
    sources=[],
    held_out_users=0.0,
    held_out_examples=0.0,
    drops={},
    example_drops={},
    totals={
        **_NOTHING,
        "records_read": 0,
        "records_stored": 0,
        "splits": {str(split): _NOTHING for split in Split},
    },
    generation=0,
    loss_mask=False,
    ownership={"rule": "single", "adjacency": "add-or-remove"},
    states=(State(id="people", kind=StateKind.PREPARED),),
)


def empty_store(path):
    """What stands for a store: a folder with the facts that a run is opened by."""
    (path / META.folder).mkdir(parents=True)
    (path / META.folder / "users.arrow").write_text("nobody")
    (path / META.folder / "tokenizer.json").write_text("{}")
    meta = replace(META, files=seal(path / META.folder))
    (path / "meta.json").write_text(json.dumps(meta.to_dict()))
    return SimpleNamespace(path=path, meta=read_meta(path))


def opened(folder, store, **options):
    """The run in ``folder``, begun or gone on with; nobody else may open it until it is closed."""
    resume = options.pop("resume", (folder / "resume.json").exists())
    names = ("identity", "facts", "train", "base", "slot")
    notes = {name: options.pop(name) for name in names if name in options}
    options = PrivateOptions(**{"exact_log": True, **options})
    return open_run(
        Training(
            model=None,
            optimizer=None,
            store=store,
            plan=PLAN,
            out=folder,
            resume=resume,
            options=options,
            **{"base": Lineage(), **notes},
        )
    )


def go_on(folder, store, steps=1, **options):
    """Take so many steps in ``folder``; how many were taken before the ledger refused one."""
    run = opened(folder, store, **options)
    try:
        for taken in range(steps):
            if not run.ledger.remaining:
                return taken
            run.ledger.attempt(StepRecord.of_plan(PLAN))
        return steps
    finally:
        run.close()


def copied(folder, to):
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(folder, to, copy_function=shutil.copy2)
    return to


def contents(folder):
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file() and p.name != ".lock"}
