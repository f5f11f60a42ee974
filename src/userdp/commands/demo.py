"""``userdp demo``: all of it in small, on text that is on every machine.

A module of PyTorch, which userdp depends on anyway, stands for a person, and its source code for
what the person wrote. The bundled model has read only docstrings of Python's own library, so that
there is much to learn: code has other words and another layout. The gain therefore shows that the
default learns under a real ε. It does not foretell the gain on text that a base model knows better.
"""

from __future__ import annotations

import os
import random
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from userdp.commands.progress import say
from userdp.core.errors import UseError
from userdp.core.files import write_json
from userdp.data.splits import Split

PACKAGE = "torch"
MODULES = 550
"""About 500 of them train and the others are held out."""
CHARACTERS = range(400, 8_000)
"""A shorter module is left out, and of a longer one the beginning is read."""
PREPARED: dict[str, Any] = {"seq_len": 16, "held_out_users": 0.08, "held_out_examples": 0.0}
"""Examples are short so that a processor of two cores needs a minute."""
TRAINED: dict[str, Any] = {"epsilon": 8.0, "population": 500}
"""All else is the preset's. The population is declared, whatever the installed version holds."""


def demo(*, out: str | os.PathLike[str]) -> dict[str, Any]:
    """Do all of it in small, on text that is on every machine.

    The users are modules of PyTorch, which userdp depends on anyway, and their text is their source
    code: prepare it, train the bundled model at epsilon 8 as the preset chooses, evaluate on
    held-out modules, report. Takes about a minute. The text is public, so only here may exact
    losses and counts be shown.

    Example::

        userdp demo --out demo

    Args:
        out: a new folder for the store, the run and the reports.

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
    say("1/4 prepare: the source code of PyTorch, module by module, to a user store")
    store = userdp.prepare(modules(), out=place / "store", **PREPARED)
    say("2/4 train: the bundled model, as the preset chooses")
    run: Any = userdp.train(store, out=place / "run", **TRAINED)
    say("3/4 evaluate: the model and the base model on held-out modules")
    measured = userdp.evaluate(run, store=store, split=[Split.HELD_OUT_USERS])
    before, after = (measured["splits"][0][of]["loss"] for of in ("base", "model"))
    say("4/4 report: the claim, its assumptions, the curves")
    pages = {"public_report": place / "report-public.html", "report": place / "report.html"}
    for kind, page in pages.items():
        userdp.report(run, out=page, public=kind == "public_report")
    sizes = store.meta.totals["splits"]
    result = {
        "text": f"{PACKAGE} {metadata.version(PACKAGE)}",
        "users": sizes["train"]["users"],
        "held_out_users": sizes["held-out-users"]["users"],
        **run.to_dict(),
        # As it stands now: exact losses were shown after the run.
        **userdp.claim(run).to_dict(),
        "loss_before": before,
        "loss_after": after,
        "gain": before - after,
        "store": str(store.path),
        **{kind: str(page) for kind, page in pages.items()},
        "seconds": round(time.monotonic() - begun, 1),
    }
    write_json(place / "demo.json", result)
    return result


def modules() -> list[dict[str, str]]:
    """Of each module that takes part its name, as the user, and the beginning of its source."""
    texts = {
        str(file): Path(file.locate()).read_text("utf-8")[: CHARACTERS.stop]
        for file in metadata.files(PACKAGE) or ()
        if file.suffix == ".py" and "test" not in str(file)
    }
    names = sorted(name for name, text in texts.items() if len(text) >= CHARACTERS.start)
    chosen = random.Random(0).sample(names, min(MODULES, len(names)))
    return [{"user": name, "text": texts[name]} for name in chosen]
