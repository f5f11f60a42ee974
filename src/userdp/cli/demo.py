"""``userdp demo``: all of it in small, on text that is on every machine."""

from __future__ import annotations

import json as json_library
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from userdp.cli.demo_recipe import DEMO, Recipe
from userdp.cli.output import emit, stderr
from userdp.cli.progress import StepBar
from userdp.errors import UseError
from userdp.vocabulary import delta_up, round_up

if TYPE_CHECKING:
    from userdp.data.store import UserStore

MARKER = "demo.json"
_PARTS = ("store", "report.html", "report-public.html")
_SHARES = {"prepare": 0.22, "train": 0.27, "evaluate": 0.10, "report": 0.04}
"""Of the whole demo's time, per call of the stage, on the machine it was tuned on."""


def demo(*, out: Path, overwrite: bool = False, json: bool = False) -> None:
    """Do all of it in small, on text that is on every machine.

    The users are the modules of packages that userdp depends on anyway, their records the
    docstrings: prepare them, train with user-level sampling (ULS) and with example-level sampling
    (ELS) at the same epsilon and compute, evaluate on held-out modules, report. Takes a minute or
    two. The text is public, so here alone exact losses and counts may be shown.

    Args:
        out: a folder for the store, the runs and the report; made if it is not there.
        overwrite: replace an earlier demo in that folder.
        json: print one JSON object on stdout.
    """
    result = run_demo(DEMO, out, overwrite=overwrite)
    emit(result, json=json, render=lambda console: print_result(console, result))


def run_demo(recipe: Recipe, out: Path, *, overwrite: bool = False) -> dict[str, Any]:
    """Every stage of ``recipe`` in the folder ``out``, through the calls the commands make.

    Returns:
        What the command prints; also kept in ``out/demo.json``.

    Raises:
        UseError: ``out`` is in use; nothing has been changed then.
    """
    names = [name for name, _ in recipe.plans]
    _make_place(out, names, overwrite=overwrite)
    stages = _Stages(["prepare", *("train" for _ in names), *("evaluate" for _ in names), "report"])
    from userdp.cli.report import build_report
    from userdp.data.splits import Split
    from userdp.training.evaluate_run import evaluate_splits
    from userdp.training.loop import train
    from userdp.training.runs import RunFolder

    with stages.next("prepare", "docstrings of installed packages to a user store") as bar:
        store = _prepare(recipe, out / "store", bar)
    config = replace(recipe.config, model=_base_model(recipe))
    for name, plan in recipe.plans:
        words = f"{plan.algorithm} from the bundled base model, {plan.steps} steps"
        with stages.next("train", words) as bar:
            train(store, plan, config, out=out / name, progress=bar, tensorboard=False)
    found: dict[str, dict[str, Any]] = {}
    for number, (name, plan) in enumerate(recipe.plans):
        words = f"{plan.algorithm}{'' if number else ' and the base model'} on held-out users"
        with stages.next("evaluate", words):
            (found[name],) = evaluate_splits(
                out / name, store, [Split.HELD_OUT_USERS], with_base=number == 0
            )
            if number:  # all runs begin from one model: it is measured once
                base = found[recipe.plans[0][0]]["base"]
                found[name]["base"] = base
                RunFolder(out / name).log({"kind": "final evaluation", "of": "base", **base})
    with stages.next("report", "the claim, its assumptions, the curves"):
        runs = [out / name for name in names]
        build_report(runs, out / "report-public.html", public=True)
        build_report(runs, out / "report.html", public=False)
    result = _result(recipe, out, store, found, seconds=stages.elapsed)
    (out / MARKER).write_text(json_library.dumps(result, indent=2) + "\n", encoding="utf-8")
    return result


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
            raise UseError(
                f"there is a demo in {out} already",
                hint="replace it with --overwrite, or choose another --out",
            )
        for part in (*_PARTS, *names):
            path = out / part
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
    out.mkdir(parents=True, exist_ok=True)
    (out / MARKER).write_text("{}\n", encoding="utf-8")


def _prepare(recipe: Recipe, place: Path, bar: StepBar) -> UserStore:
    from userdp.data.prepare import prepare_store
    from userdp.data.sources import SourceOptions, open_source
    from userdp.data.store import UserStore
    from userdp.data.tokenize import StoreTokenizer

    prepare_store(
        open_source(
            list(recipe.packages),
            kind="docstrings",
            options=SourceOptions(max_users=recipe.most_users),
        ),
        place,
        tokenizer=StoreTokenizer.load(),
        seq_len=recipe.seq_len,
        held_out_users=recipe.held_out_users,
        held_out_examples=0.0,
        progress=bar,
    )
    return UserStore.open(place)


def _base_model(recipe: Recipe) -> str:
    """The recipe's model; a new one where the package was built without the bundled weights."""
    from userdp.training.models import BASE_MODEL, BUNDLED, NEW

    if recipe.config.model == BUNDLED and not (BASE_MODEL / "model.safetensors").exists():
        stderr.print(
            "[bold yellow]warning:[/] no bundled base model here: training begins from random "
            "weights, so losses stay high",
            soft_wrap=True,
        )
        return NEW
    return recipe.config.model


def _result(
    recipe: Recipe, out: Path, store: UserStore, found: dict[str, Any], *, seconds: float
) -> dict[str, Any]:
    """The closing table's numbers; each ε from the run's ledger, as `userdp account` has it."""
    from userdp.ledger import claim

    sizes = store.meta.totals["splits"]["train"]
    runs = []
    for name, plan in recipe.plans:
        recomputed = claim(out / name).to_dict()
        runs.append(
            {
                "run": str(out / name),
                "algorithm": plan.algorithm,
                "users": sizes["users"],
                "examples": sizes["examples"],
                **recomputed,
                "loss_before": found[name]["base"]["loss"],
                "loss_after": found[name]["model"]["loss"],
            }
        )
    return {
        "runs": runs,
        "together": claim(store.path).to_dict(),
        "store": str(store.path),
        "sources": store.meta.sources,
        "report": str(out / "report.html"),
        "public_report": str(out / "report-public.html"),
        "seconds": round(seconds, 1),
    }


def print_result(console: Console, result: dict[str, Any]) -> None:
    """The closing table, and where to look next."""
    # Wide enough for every column on a terminal of 80.
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("", "users", "examples", "ε at most", "δ", "unit", "adjacency"):
        table.add_column(
            name, justify="left" if name in ("", "unit", "adjacency") else "right", no_wrap=True
        )
    table.add_column("before", justify="right", no_wrap=True)
    table.add_column("after", justify="right", no_wrap=True)
    for run in result["runs"]:
        table.add_row(
            run["algorithm"],
            f"{run['users']:,}",
            f"{run['examples']:,}",
            f"[bold]{round_up(run['epsilon'], 6)}[/]",
            delta_up(run["delta"]),
            run["unit"],
            run["adjacency"],
            f"{run['loss_before']:.4f}",
            f"[bold]{run['loss_after']:.4f}[/]",
        )
    console.print("\n[bold]Fine-tuned with user-level differential privacy[/]")
    console.print(table)
    console.print(
        "before, after: held-out users' loss in nats per token. One user is one module.\n"
    )
    together = result["together"]
    console.print(
        f"Together:   ε ≤ {round_up(together['epsilon'], 6)} at δ = {delta_up(together['delta'])}, "
        "for who sees both models",
        soft_wrap=True,
    )
    for words, place in (("Report", "report"), ("To hand on", "public_report")):
        console.print(f"{words + ':':<12}{result[place]}", soft_wrap=True, markup=False)
    for run in result["runs"]:
        console.print(
            f"Check ε:    userdp account --ledger {run['run']}", soft_wrap=True, markup=False
        )
    console.print(f"Took {result['seconds']:.0f} s.")


class _Stages:
    """Says on stderr which stage begins and how long all will still take."""

    def __init__(self, stages: list[str]) -> None:
        self._shares = [_SHARES[stage] for stage in stages]
        self._begun = time.monotonic()
        self._number = 0

    @property
    def elapsed(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._begun

    @contextmanager
    def next(self, stage: str, words: str) -> Iterator[StepBar]:
        """One stage, with a bar for what it counts."""
        done, whole = sum(self._shares[: self._number]), sum(self._shares)
        self._number += 1
        left = f", about {self.elapsed * (whole / done - 1):.0f} s left" if done else ""
        stderr.print(
            f"[bold]{self._number}/{len(self._shares)} {stage}[/] {words} "
            f"[dim]({self.elapsed:.0f} s so far{left})[/]",
            soft_wrap=True,
        )
        with StepBar() as bar:
            yield bar
