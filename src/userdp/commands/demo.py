"""``userdp demo``: all of it in small, on text that is on every machine."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from userdp.commands.progress import say
from userdp.core.errors import UseError
from userdp.core.files import write_json
from userdp.data.splits import Split

PACKAGES = ("numpy", "scipy", "pyarrow", "torch", "transformers", "matplotlib")
PREPARED: dict[str, Any] = {
    "source": "docstrings",
    "max_users": 640,
    "seq_len": 64,
    "held_out_users": 0.02,
    "held_out_examples": 0.0,
}
# The learning rate, clip norm and group sizes were chosen on this text, which is public. Both runs
# expect 40 gradients a step. Populations are declared: round numbers, whatever the packages
# installed here hold.
TRAINED: dict[str, Any] = {
    "epsilon": 7.9,
    "delta": 1e-5,
    "steps": 12,
    "l2_clip_norm": 1.0,
    "learning_rate": 2e-3,
    "checkpoint_every": 12,
}
RUNS: dict[str, dict[str, Any]] = {
    "uls": {"population": 600, "cohort_size": 20, "group_size": 2},
    "els": {
        "settings": ["sampling.kind=examples"],
        "population": 3_800,
        "batch_size": 40,
        "group_size": 8,
    },
}


def demo(*, out: str | os.PathLike[str]) -> dict[str, Any]:
    """Do all of it in small, on text that is on every machine.

    The users are the modules of packages that userdp depends on anyway, their records the
    docstrings: prepare them, train with user-level sampling (ULS) and with example-level sampling
    (ELS) at the same epsilon and compute, evaluate on held-out modules, report. Takes a minute or
    two. The text is public, so only here may exact losses and counts be shown.

    Example::

        userdp demo --out demo

    Args:
        out: a new folder for the store, the runs and the report.

    Returns:
        What was trained, claimed and measured; also in ``out/demo.json``.

    Raises:
        UseError: ``out`` is in use; nothing has been changed then.
    """
    import userdp

    begun, place = time.monotonic(), Path(out)
    if place.is_file() or (place.is_dir() and any(place.iterdir())):
        raise UseError(
            f"a demo is made in a new folder, and something lies at {place} already",
            hint="choose another --out",
        )
    say("1/4 prepare: docstrings of installed packages to a user store")
    store = userdp.prepare(PACKAGES, out=place / "store", **PREPARED)
    say(f"2/4 train: ULS and ELS from the base model, {TRAINED['steps']} steps each")
    trained: dict[str, Any] = {}
    for declare in (True, False):  # both before either runs: so neither's claim holds the other
        for name, sampled in RUNS.items():
            options = TRAINED | sampled | {"declare": declare}
            trained[name] = userdp.train(store, out=place / name, **options)
    say("3/4 evaluate: both models and the base model on held-out users")
    sizes, runs = store.meta.totals["splits"]["train"], []
    for run in trained.values():
        measured = userdp.evaluate(run, store=store, split=[Split.HELD_OUT_USERS])
        before, after = (row["loss"] for row in measured.rows())
        row = {one: sizes[one] for one in ("users", "examples")}
        row |= {"loss_before": before, "loss_after": after} | run.to_dict()
        # The claim as it stands now: exact losses were shown after the run.
        runs.append(row | userdp.claim(run).to_dict())
    say("4/4 report: the claim, its assumptions, the curves")
    pages = {"public_report": place / "report-public.html", "report": place / "report.html"}
    for kind, page in pages.items():
        userdp.report(list(trained.values()), out=page, public=kind == "public_report")
    result = {
        "runs": runs,
        "together": userdp.claim(store).to_dict(),
        "store": str(store.path),
        "sources": store.meta.sources,
        **{kind: str(page) for kind, page in pages.items()},
        "seconds": round(time.monotonic() - begun, 1),
    }
    write_json(place / "demo.json", result)
    return result
