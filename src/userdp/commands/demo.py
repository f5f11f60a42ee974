"""``userdp demo``: all of it in small, on text that is on every machine."""

from __future__ import annotations

import math
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from userdp.clip import Clip
from userdp.commands.progress import say
from userdp.data.splits import Split
from userdp.errors import UseError, warn
from userdp.files import in_the_way, write_json
from userdp.ledger import RunFolder
from userdp.noise import Gaussian
from userdp.plans import Budget, Plan
from userdp.reporting.table import Table, table_of
from userdp.sampling import PoissonExamples, PoissonUsers
from userdp.training.config import TrainConfig
from userdp.vocabulary import delta_up, round_up


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """One demonstration from text to report.

    Args:
        packages: installed distributions whose modules are the users; one module is one user.
        most_users: at most so many modules.
        seq_len: most tokens of an example.
        held_out_users: fraction of the modules that is never trained on.
        plans: by the name of the run; each with a declared population, not a count.
        config: of every run.
    """

    packages: tuple[str, ...]
    most_users: int
    seq_len: int
    held_out_users: float
    plans: tuple[tuple[str, Plan], ...]
    config: TrainConfig


# Both spend the same: at most so many gradients a step in expectation, times steps. The noise
# multipliers are what `userdp account --epsilon` found for 7.9, written down so that the demo need
# not search; epsilon is recomputed from the ledger in any case. The learning rate,
# clip norms and group sizes were chosen on this text, which is public.
_STEPS = 12
_BUDGET = Budget(target_delta=1e-5, target_epsilon=7.9)
_USERS = 600  # declared: a round number, whatever the packages installed here hold

DEMO = Recipe(
    packages=("numpy", "scipy", "pyarrow", "torch", "transformers", "matplotlib"),
    most_users=640,
    seq_len=64,
    held_out_users=0.02,
    plans=(
        (
            "uls",
            Plan(
                sampling=PoissonUsers(sampling_probability=20 / _USERS, group_size=2),
                clip=Clip(l2_norm=1.0),
                noise=Gaussian(multiplier=0.4848),
                steps=_STEPS,
                population=_USERS,
                budget=_BUDGET,
            ),
        ),
        (
            "els",
            Plan(
                sampling=PoissonExamples(sampling_probability=40 / 3_800, group_size=8),
                clip=Clip(l2_norm=1.0),
                noise=Gaussian(multiplier=0.7706),
                steps=_STEPS,
                population=3_800,
                budget=_BUDGET,
            ),
        ),
    ),
    config=TrainConfig(
        learning_rate=2e-3,
        checkpoint_every=_STEPS,
    ),
)

MARKER = "demo.json"
_PARTS = ("store", "report.html", "report-public.html")


def demo(*, out: str | os.PathLike[str], overwrite: bool = False) -> dict[str, Any]:
    """Do all of it in small, on text that is on every machine.

    The users are the modules of packages that userdp depends on anyway, their records the
    docstrings: prepare them, train with user-level sampling (ULS) and with example-level sampling
    (ELS) at the same epsilon and compute, evaluate on held-out modules, report. Takes a minute or
    two. The text is public, so only here may exact losses and counts be shown.

    Args:
        out: a folder for the store, the runs and the report; made if it is not there.
        overwrite: replace an earlier demo in that folder.

    Returns:
        What was trained, claimed and measured; also in ``out/demo.json``.
    """
    return run_demo(DEMO, Path(out), overwrite=overwrite)


def run_demo(recipe: Recipe, out: Path, *, overwrite: bool = False) -> dict[str, Any]:
    """Every stage of ``recipe`` in the folder ``out``, by the functions of `userdp`.

    Raises:
        UseError: ``out`` is in use; nothing has been changed then.
    """
    import userdp
    from userdp.ledger import StoreLedger
    from userdp.training.models import BASE_MODEL, BUNDLED, NEW

    begun, names = time.monotonic(), [name for name, _ in recipe.plans]
    _make_place(out, names, overwrite=overwrite)
    config = recipe.config
    if config.model == BUNDLED and not (BASE_MODEL / "model.safetensors").exists():
        warn("no bundled base model here: training begins from random weights: losses stay high")
        config = replace(config, model=NEW)

    say("1/4 prepare: docstrings of installed packages to a user store")
    store = userdp.prepare(
        list(recipe.packages),
        out=out / "store",
        source="docstrings",
        max_users=recipe.most_users,
        seq_len=recipe.seq_len,
        held_out_users=recipe.held_out_users,
        held_out_examples=0.0,
    )
    # Fixed before anything ran: so the sum is a guarantee, and neither run's claim holds the other.
    prices = [plan.guarantee() for _, plan in recipe.plans]
    StoreLedger(store.path).declare_total(
        math.fsum(price.epsilon for price in prices), math.fsum(price.delta for price in prices)
    )
    for name, plan in recipe.plans:
        userdp.train(store, plan, out=out / name, config=config, declare=True)
    for name, plan in recipe.plans:
        say(f"2/4 train: {plan.algorithm} from the base model, {plan.steps} steps")
        userdp.train(store, plan, out=out / name, config=config)
    say("3/4 evaluate: both models and the base model on held-out users")
    runs, base = [], None
    for name, plan in recipe.plans:
        measured = userdp.evaluate(
            out / name, store=store, split=[Split.HELD_OUT_USERS], base=base is None
        )
        (losses,) = measured.splits
        if base is None:
            base = losses["base"]
        else:  # all runs begin from one model: it is measured once
            RunFolder(out / name).log({"kind": "final evaluation", "of": "base", **base})
        sizes = store.meta.totals["splits"]["train"]
        runs.append(
            {
                "run": str(out / name),
                "algorithm": plan.algorithm,
                "users": sizes["users"],
                "examples": sizes["examples"],
                **userdp.claim(out / name).to_dict(),
                "loss_before": base["loss"],
                "loss_after": losses["model"]["loss"],
            }
        )
    say("4/4 report: the claim, its assumptions, the curves")
    folders = [out / name for name in names]
    userdp.report(folders, out=out / "report-public.html", public=True)
    userdp.report(folders, out=out / "report.html")
    result = {
        "runs": runs,
        "together": userdp.claim(store).to_dict(),
        "store": str(store.path),
        "sources": store.meta.sources,
        "report": str(out / "report.html"),
        "public_report": str(out / "report-public.html"),
        "seconds": round(time.monotonic() - begun, 1),
    }
    write_json(out / MARKER, result)
    return result


def in_words(result: dict[str, Any]) -> Iterator[Table | str]:
    """The closing table, and where to look next."""
    yield "\nFine-tuned with user-level differential privacy"
    # Its columns fit on a terminal of 80 characters.
    yield table_of(
        result["runs"],
        {
            "": lambda run: run["algorithm"],
            "users": lambda run: run["users"],
            "examples": lambda run: run["examples"],
            "ε at most": lambda run: round_up(run["epsilon"], 6),
            "δ": lambda run: delta_up(run["delta"]),
            "unit": lambda run: run["unit"],
            "adjacency": lambda run: run["adjacency"],
            "before": lambda run: f"{run['loss_before']:.4f}",
            "after": lambda run: f"{run['loss_after']:.4f}",
        },
        key="ε at most",
    )
    yield "before, after: held-out users' loss in nats per token. One user is one module.\n"
    together = result["together"]
    for run in result["runs"]:
        yield f"{run['algorithm'] + ':':<12}{run['headline']}"
    yield f"Together:   for whoever sees both models {together['headline']}"
    yield f"Report:     {result['report']}"
    yield f"To hand on: {result['public_report']}"
    for run in result["runs"]:
        yield f"Check ε:    userdp account --ledger {run['run']}"
    yield f"Took {result['seconds']:.0f} s."


def _make_place(out: Path, names: list[str], *, overwrite: bool) -> None:
    """An empty folder with the marker; an earlier demo is removed where that was asked for."""
    if out.exists() and not out.is_dir():
        raise UseError(f"{out} is a file, and a demo needs a folder")
    if out.is_dir() and any(out.iterdir()):
        if not (out / MARKER).exists():
            raise UseError(
                f"{out} is not empty and holds no earlier demo: nothing of it is overwritten",
                hint="choose another --out",
            )
        if not overwrite:
            raise in_the_way(out, "a demo")
        for part in (*_PARTS, *names):
            path = out / part
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
    out.mkdir(parents=True, exist_ok=True)
    (out / MARKER).write_text("{}\n", encoding="utf-8")
