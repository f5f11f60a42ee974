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
from userdp.commands.answer import Part
from userdp.commands.progress import say
from userdp.data.splits import Split
from userdp.errors import UseError, warn
from userdp.files import in_the_way, write_json
from userdp.noise import Gaussian
from userdp.plans import Budget, Plan
from userdp.sampling import PoissonExamples, PoissonUsers, Sampling
from userdp.training.config import TrainConfig


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


def _plan(sampling: Sampling, *, noise: float, population: int) -> Plan:
    return Plan(
        sampling=sampling,
        clip=Clip(l2_norm=1.0),
        noise=Gaussian(multiplier=noise),
        steps=_STEPS,
        population=population,
        budget=_BUDGET,
    )


_ULS = PoissonUsers(sampling_probability=20 / 600, group_size=2)
_ELS = PoissonExamples(sampling_probability=40 / 3_800, group_size=8)

# Populations are declared: round numbers, whatever the packages installed here hold.
DEMO = Recipe(
    packages=("numpy", "scipy", "pyarrow", "torch", "transformers", "matplotlib"),
    most_users=640,
    seq_len=64,
    held_out_users=0.02,
    plans=(
        ("uls", _plan(_ULS, noise=0.4848, population=600)),
        ("els", _plan(_ELS, noise=0.7706, population=3_800)),
    ),
    config=TrainConfig(learning_rate=2e-3, checkpoint_every=_STEPS),
)

MARKER = "demo.json"


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

    begun, config = time.monotonic(), recipe.config
    folders = {name: out / name for name, _ in recipe.plans}
    _make_place(out, [*folders.values()], overwrite=overwrite)
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
        userdp.train(store, plan, out=folders[name], config=config, declare=True)
    for name, plan in recipe.plans:
        say(f"2/4 train: {plan.algorithm} from the base model, {plan.steps} steps")
        userdp.train(store, plan, out=folders[name], config=config)
    say("3/4 evaluate: both models and the base model on held-out users")
    sizes, runs = store.meta.totals["splits"]["train"], []
    for name, plan in recipe.plans:
        measured = userdp.evaluate(folders[name], store=store, split=[Split.HELD_OUT_USERS])
        runs.append(
            {
                "run": str(folders[name]),
                "algorithm": plan.algorithm,
                "users": sizes["users"],
                "examples": sizes["examples"],
                **userdp.claim(folders[name]).to_dict(),
                "loss_before": measured.splits[0]["base"]["loss"],
                "loss_after": measured.splits[0]["model"]["loss"],
            }
        )
    say("4/4 report: the claim, its assumptions, the curves")
    pages = {"public_report": out / "report-public.html", "report": out / "report.html"}
    for kind, page in pages.items():
        userdp.report([*folders.values()], out=page, public=kind == "public_report")
    result = {
        "runs": runs,
        "together": userdp.claim(store).to_dict(),
        "store": str(store.path),
        "sources": store.meta.sources,
        **{kind: str(page) for kind, page in pages.items()},
        "seconds": round(time.monotonic() - begun, 1),
    }
    write_json(out / MARKER, result)
    return result


_SHOWN = ("algorithm", "users", "examples", "epsilon", "delta", "loss_before", "loss_after")


def in_words(result: dict[str, Any]) -> Iterator[Part]:
    """The closing table, and where to look next."""
    yield "\nFine-tuned with user-level differential privacy"
    yield [{name: run[name] for name in _SHOWN} for run in result["runs"]]
    yield "Losses of held-out users, in nats per token. One user is one module.\n"
    yield from (f"{run['algorithm']}: {run['headline']}" for run in result["runs"])
    yield f"Together, for whoever sees both models: {result['together']['headline']}"
    yield f"Report: {result['report']}; to hand on: {result['public_report']}"
    yield from (f"Check ε: userdp account --ledger {run['run']}" for run in result["runs"])
    yield f"Took {result['seconds']:.0f} s."


def _make_place(out: Path, runs: list[Path], *, overwrite: bool) -> None:
    """A folder with the marker; an earlier demo is removed where that was asked for."""
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
        for folder in (out / "store", *runs):
            shutil.rmtree(folder, ignore_errors=True)
        for page in out.glob("report*.html"):
            page.unlink()
    out.mkdir(parents=True, exist_ok=True)
    (out / MARKER).write_text("{}\n", encoding="utf-8")
