"""``userdp demo``: all of it in small, on text that is on every machine."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

from userdp.commands.progress import say
from userdp.core.clip import Clip
from userdp.core.errors import UseError
from userdp.core.files import in_the_way, write_json
from userdp.data.splits import Split
from userdp.noise import Gaussian
from userdp.plans import Budget, Plan
from userdp.sampling import PoissonExamples, PoissonUsers
from userdp.training.config import TrainConfig

STEPS = 12


# Both plans spend the same: at most so many gradients a step in expectation, times steps. The noise
# multipliers are what `userdp account --epsilon` found for 7.9, written down so that the demo need
# not search; epsilon is recomputed from the ledger in any case. The learning rate, clip norms and
# group sizes were chosen on this text, which is public. Populations are declared: round numbers,
# whatever the packages installed here hold.
_COMMON: Any = {"clip": Clip(l2_norm=1.0), "steps": STEPS}
_COMMON["budget"] = Budget(target_delta=1e-5, target_epsilon=7.9)
_ULS = PoissonUsers(sampling_probability=20 / 600, group_size=2)
_ELS = PoissonExamples(sampling_probability=40 / 3_800, group_size=8)
PLANS = {
    "uls": Plan(sampling=_ULS, noise=Gaussian(multiplier=0.4848), population=600, **_COMMON),
    "els": Plan(sampling=_ELS, noise=Gaussian(multiplier=0.7706), population=3_800, **_COMMON),
}
CONFIG = TrainConfig(learning_rate=2e-3, checkpoint_every=STEPS)
PACKAGES = ("numpy", "scipy", "pyarrow", "torch", "transformers", "matplotlib")
PREPARED: dict[str, Any] = {
    "source": "docstrings",
    "max_users": 640,
    "seq_len": 64,
    "held_out_users": 0.02,
    "held_out_examples": 0.0,
}
MARKER = "demo.json"


def demo(*, out: str | os.PathLike[str], overwrite: bool = False) -> dict[str, Any]:
    """Do all of it in small, on text that is on every machine.

    The users are the modules of packages that userdp depends on anyway, their records the
    docstrings: prepare them, train with user-level sampling (ULS) and with example-level sampling
    (ELS) at the same epsilon and compute, evaluate on held-out modules, report. Takes a minute or
    two. The text is public, so only here may exact losses and counts be shown.

    Example::

        userdp demo --out demo

    Args:
        out: a folder for the store, the runs and the report; made if it is not there.
        overwrite: replace an earlier demo in that folder.

    Returns:
        What was trained, claimed and measured; also in ``out/demo.json``.

    Raises:
        UseError: ``out`` is in use; nothing has been changed then.
    """
    import userdp

    begun, place = time.monotonic(), _place(Path(out), overwrite=overwrite)
    say("1/4 prepare: docstrings of installed packages to a user store")
    store = userdp.prepare(PACKAGES, out=place / "store", **PREPARED)
    for declare in (True, False):  # both before either runs: so neither's claim holds the other
        for name, plan in PLANS.items():
            if not declare:
                say(f"2/4 train: {plan.algorithm} from the base model, {plan.steps} steps")
            userdp.train(store, plan, out=place / name, config=CONFIG, declare=declare)
    say("3/4 evaluate: both models and the base model on held-out users")
    sizes, runs = store.meta.totals["splits"]["train"], []
    for name, plan in PLANS.items():
        measured = userdp.evaluate(place / name, store=store, split=[Split.HELD_OUT_USERS])
        before, after = (row["loss"] for row in measured.rows())
        told = {"run": str(place / name), "algorithm": plan.algorithm}
        told |= {one: sizes[one] for one in ("users", "examples")}
        told |= {"loss_before": before, "loss_after": after}
        runs.append(told | userdp.claim(place / name).to_dict())
    say("4/4 report: the claim, its assumptions, the curves")
    pages = {"public_report": place / "report-public.html", "report": place / "report.html"}
    for kind, page in pages.items():
        public = kind == "public_report"
        userdp.report([place / name for name in PLANS], out=page, public=public, overwrite=True)
    result = {
        "runs": runs,
        "together": userdp.claim(store).to_dict(),
        "store": str(store.path),
        "sources": store.meta.sources,
        **{kind: str(page) for kind, page in pages.items()},
        "seconds": round(time.monotonic() - begun, 1),
    }
    write_json(place / MARKER, result)
    return result


def _place(out: Path, *, overwrite: bool) -> Path:
    """A folder with the marker; an earlier demo is removed where that was asked for."""
    demonstrated = (out / MARKER).exists()
    if demonstrated and not overwrite:
        raise in_the_way(out, "a demo")
    if out.is_file() or (out.is_dir() and any(out.iterdir()) and not demonstrated):
        raise UseError(
            f"{out} is no empty folder and holds no earlier demo: nothing of it is overwritten",
            hint="choose another --out",
        )
    for old in ("store", *PLANS) if demonstrated else ():
        shutil.rmtree(out / old, ignore_errors=True)
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / MARKER, {})
    return out
