"""Run folders without a model: a step is its line in the ledger."""

import shutil
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.data.corpora import corpus, prepared
from tests.plans import uls_plan
from userdp.claims.lineage import Lineage
from userdp.data.user_store import UserStore
from userdp.plans import StepRecord
from userdp.training.config import PrivateOptions
from userdp.training.open_run import Training, open_run

PLAN = uls_plan()


class Killed(BaseException):
    """Stands for a process that is no more."""


@cache
def _made():
    """A store of two people, in a folder that goes with this process."""
    folder = TemporaryDirectory()
    return folder, prepared(corpus(2), Path(folder.name) / "store").path


def new_store(path):
    """A store to which nothing was charged."""
    return UserStore.open(shutil.copytree(_made()[1], path))


def opened(folder, store, **options):
    """The run in ``folder``, begun or gone on with; nobody else may open it until it is closed."""
    usual = {"exact_log": True, "resume": (folder / "resume.json").exists()}
    names = ("identity", "facts", "train", "base", "slot")
    notes = {name: options.pop(name) for name in names if name in options}
    return open_run(
        Training(
            model=None,
            optimizer=None,
            store=store,
            plan=PLAN,
            out=folder,
            options=PrivateOptions(**usual | options),
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
