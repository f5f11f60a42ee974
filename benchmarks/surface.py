"""The loss surface of ULS over group size and cohort size, and who finds its valley.

    python -m benchmarks.surface prepare --data commits.jsonl.gz   # stores, base model
    python -m benchmarks.surface plan                              # norms, noise, every choice
    python -m benchmarks.surface run [--epsilon 4 1]               # hours; goes on where it stopped
    python -m benchmarks.surface report [--json]                   # tables and PNG

Charles et al. 2024, Appendix F.1, in small: for each compute budget B and group size G a private
run with cohorts of M = B/G users, T = 60 steps, examples of 64 tokens. ``plan`` writes which cell
each strategy takes, before any cell is trained, and ``run`` refuses to begin without that file.

The learning rate is tuned for every cell, as in the paper: one run with each of two, and the
cell's three measured runs are fresh ones with the best of them. The clip norm is the probed median
norm at that G, with normalized clipping.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

from papers.sized import plan_of_size
from papers.studies.runs import Job, Row, read_rows, run_all
from userdp.clip import ClipForm
from userdp.sampling import PoissonUsers
from userdp.training.config import PlainPlan, Schedule, TrainConfig

BUDGETS = (16, 32, 64, 128, 256)
GROUP_SIZES = (1, 2, 4, 8, 16)
EPSILONS = (4.0, 1.0)
RATES = {4.0: (2e-3, 4e-3), 1.0: (1e-3, 2e-3)}
REPETITIONS = 3
STEPS = 60
SEQ_LEN = 64
POPULATION = 1_500  # declared: a round number near the 1,474 training users
DELTA = 1e-5
EVALUATED_EXAMPLES = 16  # of each held-out user
BASE = TrainConfig(
    model="new",
    layers=2,
    width=64,
    heads=4,
    learning_rate=4e-3,
    warmup_steps=50,
    schedule=Schedule.COSINE,
    weight_decay=0.1,
    micro_batch=16,
    checkpoint_every=10_000,
)
BASE_PLAN = PlainPlan(steps=1_500, batch_size=32)
FINE = TrainConfig(warmup_steps=5, schedule=Schedule.LINEAR, micro_batch=16, checkpoint_every=STEPS)
STRATEGIES = ("ours", "estimate-and-double", "max cohort", "max group", "random", "greedy oracle")
MARKS = ("o-", "s--", "D:", "^-", "v-", "x:")
RESULTS = Path("docs/results")


def cells(budget: int) -> list[tuple[int, int]]:
    """(G, M) with G·M = B and at least one user a step."""
    return [(g, budget // g) for g in GROUP_SIZES if budget // g >= 1]


def prepare(work: Path, data: Path) -> None:
    """The stores of public docstrings and of commits, and a small base model of the former."""
    from userdp.data.prepare import prepare_store
    from userdp.data.sources import open_source
    from userdp.data.store import UserStore
    from userdp.data.tokenize import StoreTokenizer
    from userdp.training.loop import train

    work.mkdir(parents=True, exist_ok=True)
    sources = {"public": (["stdlib"], "docstrings", 0.05), "store": ([str(data)], "jsonl", 0.1)}
    for name, (paths, kind, held_out) in sources.items():
        if not (work / name).exists():
            prepare_store(
                open_source(paths, kind=kind),
                work / name,
                tokenizer=StoreTokenizer.load(),
                seq_len=SEQ_LEN,
                held_out_users=held_out,
                held_out_examples=0.0,
            )
    if not (work / "base" / "model").exists():
        store = UserStore.open(work / "public")
        train(store, BASE_PLAN, BASE, out=work / "base", tensorboard=False)


def make_plan(work: Path, out: Path) -> dict[str, Any]:
    """Norms by the probe, σ by the accountant, and every strategy's cell; written once."""
    from userdp.data.store import UserStore
    from userdp.plans.cells import NoiseTable, Problem, estimate_and_double, optimum
    from userdp.plans.origin import Provenance
    from userdp.training.probe import probe_store

    if out.exists():
        raise SystemExit(f"{out} is there already: choices are fixed once")
    store = UserStore.open(work / "store")
    config = replace(FINE, model=str(work / "base" / "model"))
    probed = probe_store(
        store, config, source=Provenance.HELD_OUT, max_group_size=GROUP_SIZES[-1], seed=0
    )
    found: dict[str, Any] = {
        "steps": STEPS,
        "seq_len": SEQ_LEN,
        "population": POPULATION,
        "delta": DELTA,
        "learning_rates": {str(epsilon): rates for epsilon, rates in RATES.items()},
        "repetitions": REPETITIONS,
        "evaluated_examples_per_user": EVALUATED_EXAMPLES,
        "probed_users": probed.users,
        "norms": {str(g): probed.user_norm(g) for g in GROUP_SIZES},
        "example_norm": probed.example_norm,
        "noise": {},
        "predicted_noise_std": {},
        "choices": {},
        "best_over_every_group_size": {},
    }
    for epsilon in EPSILONS:
        table = NoiseTable(target_epsilon=epsilon, target_delta=DELTA)
        noise, predicted, choices, free = {}, {}, {}, {}
        for budget in BUDGETS:
            problem = Problem(
                table=table, norms=probed, budget=budget, steps=STEPS, population=POPULATION
            )
            priced = {cell: problem.of_users(cell[0], float(cell[1])) for cell in cells(budget)}
            for (g, m), cell in priced.items():
                noise[str(m)] = cell.noise_multiplier
                predicted[f"{g}x{m}"] = cell.noise_std
            doubled = estimate_and_double(problem)[-1]
            best, _ = optimum(problem)
            choices[str(budget)] = {
                "ours": min(priced, key=lambda cell: priced[cell].noise_std),
                "estimate-and-double": (doubled.group_size, round(doubled.units)),
                "max cohort": cells(budget)[0],
                "max group": cells(budget)[-1],
            }
            free[str(budget)] = (best.group_size, best.units)
        found["noise"][str(epsilon)] = noise
        found["predicted_noise_std"][str(epsilon)] = predicted
        found["choices"][str(epsilon)] = choices
        found["best_over_every_group_size"][str(epsilon)] = free
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return found


def job(
    plan: dict[str, Any], work: Path, *, epsilon: float, g: int, m: int, rate: float, run: str
) -> Job:
    """One private run of a cell; its σ is the plan file's."""
    private = plan_of_size(
        PoissonUsers,
        population=POPULATION,
        size=m,
        group_size=g,
        steps=STEPS,
        l2_clip_norm=plan["norms"][str(g)],
        target_delta=DELTA,
        noise_multiplier=plan["noise"][str(epsilon)][str(m)],
    )
    return Job(
        key={"epsilon": epsilon, "g": g, "m": m, "rate": rate, "run": run},
        plan=replace(private, clip=replace(private.clip, form=ClipForm.NORMALIZED)),
        config=replace(FINE, model=str(work / "base" / "model"), learning_rate=rate),
    )


def run(work: Path, plan: dict[str, Any], results: Path, epsilons: list[float]) -> None:
    """All rates of every cell once, then each cell's repetitions at its best rate."""
    shared: dict[str, Any] = {"store": work / "store", "work": work, "results": results}
    shared["most_examples"] = plan["evaluated_examples_per_user"]
    for epsilon in epsilons:
        grid = [cell for budget in BUDGETS for cell in cells(budget)]
        tuning = [
            job(plan, work, epsilon=epsilon, g=g, m=m, rate=rate, run="tune")
            for g, m in grid
            for rate in RATES[epsilon]
        ]
        run_all(tuning, **shared)
        rows = read_rows(results)
        best = {cell: best_rate(rows, epsilon, *cell) for cell in grid}
        measured = [
            job(plan, work, epsilon=epsilon, g=g, m=m, rate=best[g, m], run=f"measure-{n}")
            for n in range(REPETITIONS)
            for g, m in grid
        ]
        run_all(measured, **shared)


def best_rate(rows: list[Row], epsilon: float, g: int, m: int) -> float:
    """The learning rate of the least loss among the cell's tuning runs."""
    tuned = [row for row in rows if _in_cell(row, epsilon, g, m) and row["key"]["run"] == "tune"]
    return float(min(tuned, key=lambda row: float(row["loss"]))["key"]["rate"])


def _in_cell(row: Row, epsilon: float, g: int, m: int) -> bool:
    key = row["key"]
    return bool(key["epsilon"] == epsilon and key["g"] == g and key["m"] == m)


def cell_losses(rows: list[Row], epsilon: float, g: int, m: int) -> list[float]:
    """The measured losses of a cell."""
    return [
        row["loss"]
        for row in rows
        if _in_cell(row, epsilon, g, m) and row["key"]["run"].startswith("measure")
    ]


def greedy_oracle(mean: dict[tuple[int, int], float], budget: int) -> tuple[int, int]:
    """Doubles whatever the measured losses favour: Appendix F.1; needs the whole surface."""
    g, m = 1, BUDGETS[0]
    while g * m < budget:
        ways = [cell for cell in ((2 * g, m), (g, 2 * m)) if cell in mean]
        g, m = min(ways, key=mean.__getitem__)
    return g, m


def summary(plan: dict[str, Any], rows: list[Row], epsilon: float) -> list[Row]:
    """For each budget: the best cell, and how far each strategy is from it."""
    losses = {cell: cell_losses(rows, epsilon, *cell) for b in BUDGETS for cell in cells(b)}
    mean = {cell: statistics.fmean(found) for cell, found in losses.items() if found}
    lines = []
    for budget in BUDGETS:
        have = [cell for cell in cells(budget) if cell in mean]
        if len(have) < len(cells(budget)):
            continue
        best = min(have, key=mean.__getitem__)
        chosen = plan["choices"][str(epsilon)][str(budget)]
        choice = {name: tuple(cell) for name, cell in chosen.items()}
        choice["greedy oracle"] = greedy_oracle(mean, budget)
        excess = {name: mean[cell] - mean[best] for name, cell in choice.items()}
        excess["random"] = statistics.fmean(mean[cell] for cell in have) - mean[best]
        low, high = interval(losses[best])
        ours = mean[choice["ours"]]
        lines.append(
            {
                "epsilon": epsilon,
                "budget": budget,
                "best": best,
                "best_loss": mean[best],
                "best_interval": [low, high],
                "choice": choice,
                "excess": excess,
                "ours_within_1_percent": ours <= 1.01 * mean[best],
                "ours_inside_interval": ours <= high,
                "ours_no_worse_than_estimate_and_double": excess["ours"]
                <= excess["estimate-and-double"],
            }
        )
    return lines


def interval(losses: list[float]) -> tuple[float, float]:
    """95% confidence interval of the mean, by Student's t."""
    from scipy import stats

    mean = statistics.fmean(losses)
    if len(losses) < 2:
        return mean, mean
    width = float(stats.t.ppf(0.975, len(losses) - 1)) * statistics.stdev(losses)
    width /= math.sqrt(len(losses))
    return mean - width, mean + width


def table(lines: list[Row]) -> str:
    """The summary as Markdown."""
    head = "| ε | B | best (G × M) | loss, 95% interval | ours | " + " | ".join(STRATEGIES) + " |"
    out = [head, "|" + "---|" * (5 + len(STRATEGIES))]
    for line in lines:
        low, high = line["best_interval"]
        cell = "{} × {}".format(*line["best"])
        ours = "{} × {}".format(*line["choice"]["ours"])
        excess = " | ".join(f"{line['excess'][name]:+.4f}" for name in STRATEGIES)
        out.append(
            f"| {line['epsilon']:g} | {line['budget']} | {cell} | {line['best_loss']:.4f} "
            f"[{low:.4f}, {high:.4f}] | {ours} | {excess} |"
        )
    return "\n".join(out)


def draw(plan: dict[str, Any], rows: list[Row], epsilons: list[float], path: Path) -> None:
    """Heat maps as Figure 13 above, sub-optimality over budgets as Figure 14 below."""
    from userdp.reporting.drawing import panels, save

    figure, axes = panels(2 * len(epsilons), rows=2, width=6.0, height=4.2)
    for column, epsilon in enumerate(epsilons):
        heat, lines = axes[column], axes[len(epsilons) + column]
        cohorts = sorted({m for b in BUDGETS for _, m in cells(b)})
        grid = [[math.nan] * len(cohorts) for _ in GROUP_SIZES]
        for budget in BUDGETS:
            for g, m in cells(budget):
                found = cell_losses(rows, epsilon, g, m)
                if found:
                    grid[GROUP_SIZES.index(g)][cohorts.index(m)] = statistics.fmean(found)
        image = heat.imshow(grid, origin="lower", cmap="viridis_r", aspect="auto")
        for i, line in enumerate(grid):
            for j, loss in enumerate(line):
                if not math.isnan(loss):
                    ink = "white" if image.norm(loss) > 0.6 else "black"
                    heat.text(j, i, f"{loss:.3f}", ha="center", va="center", size=7, color=ink)
        found_lines = summary(plan, rows, epsilon)
        for line in found_lines:
            for name, color, size in (("best", "black", 0.96), ("ours", "red", 0.8)):
                g, m = line["best"] if name == "best" else line["choice"]["ours"]
                x, y = cohorts.index(m), GROUP_SIZES.index(g)
                heat.add_patch(_square(x, y, size, color))
        heat.set_xticks(range(len(cohorts)), [str(m) for m in cohorts])
        heat.set_yticks(range(len(GROUP_SIZES)), [str(g) for g in GROUP_SIZES])
        heat.set_xlabel("cohort size M")
        heat.set_ylabel("group size G")
        heat.set_title(f"held-out loss, ε = {epsilon:g} (black: best of its B, red: ours)", size=9)
        xs = [line["budget"] for line in found_lines]
        for name, mark in zip(STRATEGIES, MARKS, strict=True):  # where several are one, all show
            above = [line["excess"][name] for line in found_lines]
            lines.plot(xs, above, mark, label=name, markersize=14 - 2 * STRATEGIES.index(name))
        lines.set_xscale("log", base=2)
        lines.set_xlabel("compute budget B")
        lines.set_ylabel("loss above the best cell")
        lines.grid(alpha=0.3)
        lines.legend(fontsize=7)
    figure.suptitle("ULS over group and cohort size", fontsize=11)
    save(figure, path)


def _square(x: int, y: int, size: float, color: str) -> Any:
    from matplotlib.patches import Rectangle

    corner = (x - size / 2, y - size / 2)
    return Rectangle(corner, size, size, fill=False, edgecolor=color, linewidth=2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("stage", choices=("prepare", "plan", "run", "report"))
    parser.add_argument("--data", type=Path, default=Path("../shared/data/commits.jsonl.gz"))
    parser.add_argument("--work", type=Path, default=Path("runs/surface"))
    parser.add_argument("--plan", type=Path, default=RESULTS / "surface-plan.json")
    parser.add_argument("--results", type=Path, default=RESULTS / "surface.jsonl")
    parser.add_argument("--png", type=Path, default=RESULTS / "surface.png")
    parser.add_argument("--epsilon", type=float, nargs="+", default=list(EPSILONS))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.stage == "prepare":
        prepare(options.work, options.data)
        return
    if options.stage == "plan":
        print(json.dumps(make_plan(options.work, options.plan)["choices"], indent=2))
        return
    plan = json.loads(options.plan.read_text(encoding="utf-8"))
    if options.stage == "run":
        run(options.work, plan, options.results, options.epsilon)
        return
    rows = read_rows(options.results)
    lines = [line for epsilon in options.epsilon for line in summary(plan, rows, epsilon)]
    draw(plan, rows, options.epsilon, options.png)
    print(json.dumps({"summary": lines}) if options.json else table(lines))


if __name__ == "__main__":
    main()
