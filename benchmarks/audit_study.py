"""The audit's evidence on two real texts: right runs, broken runs, and user inference.

    python -m benchmarks.surface prepare                   # the small base model of public text
    python -m benchmarks.audit_study prepare [--data DIR]  # two stores
    python -m benchmarks.audit_study run [--only TEXT]     # rows as they come; goes on from there
    python -m benchmarks.audit_study report                # tables, and a plot

Right runs: five ULS and five ELS for each text, at ε of 1, 2 and 4, each run once more by the audit
with canaries. Broken ones: each of `benchmarks.broken_runs`, once for each text. User inference: on
a run without privacy and on ULS at ε = 4 of the same number of gradients, whose whole audit
(`audit_run`) is one of the right runs; and once more on a run of each kind, also against
`REFERENCES` reference runs.

People with 24 records or more take part, with 24 each, so that both sides of the attack hold alike
many; half of all people are held out, and half of the others' records. A record is its first 200
characters. ``shakespeare-whole`` holds all records of the same people, for a longer run without
privacy.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import shutil
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.broken_runs import BROKEN
from benchmarks.private_runs import Row, append_row, name_of, read_rows
from userdp.data.store import UserStore
from userdp.plan import Plan
from userdp.training.config import PlainPlan, TrainConfig

TEXTS = ("commits", "shakespeare")
WHOLE = "shakespeare-whole"  # the same people of it, with all that they said
PLAIN = "without privacy"
ATTACKED = "against references"
RECORDS = 24
CHARACTERS = 200
SEQ_LEN = 64
POPULATION = 180  # users, declared
GROUP_SIZE = {"ULS": 2, "ELS": 4}
COHORT, BATCH = 16, 32
DELTA = 1e-4
STEPS = 30
LONG_STEPS = 300
LONGER_STEPS = 900  # without privacy, where LONG_STEPS left no trace
CANARIES = 64
REFERENCES = 8  # runs that the sharper attack compares with
RIGHT = (1.0, 2.0, 4.0, 1.0, 4.0)  # for each algorithm; the last of ULS is the long run
BROKEN_EPSILON = 2.0
NOISELESS = 20.0  # the noise multiplier of a small claim, which a thousandth of is broken
RESULTS = Path("docs/results")


def config(base: Path, *, learning_rate: float = 2e-3) -> TrainConfig:
    """All weights by AdamW, at a constant rate that nobody tuned."""
    return TrainConfig(
        model=str(base), learning_rate=learning_rate, warmup_steps=5, checkpoint_every=10_000
    )


def plan(
    algorithm: str, epsilon: float | None, *, steps: int, noise_multiplier: float | None = None
) -> Plan:
    """Thirty-two gradients of examples a step in expectation, at most."""
    common: dict[str, Any] = {
        "steps": steps,
        "group_size": GROUP_SIZE[algorithm],
        "l2_clip_norm": 0.5,
        "target_delta": DELTA,
        "target_epsilon": epsilon,
        "noise_multiplier": noise_multiplier,
    }
    if algorithm == "ULS":
        return Plan.for_users(population=POPULATION, cohort_size=COHORT, **common)
    return Plan.for_examples(population=4 * POPULATION, batch_size=BATCH, **common)


def prepare(work: Path, data: Path) -> None:
    """The part of each text that takes part, and its store."""
    from userdp.data.prepare import prepare_store
    from userdp.data.sources import open_source
    from userdp.data.tokenize import StoreTokenizer

    work.mkdir(parents=True, exist_ok=True)
    for text in (*TEXTS, WHOLE):
        if (work / text).exists():
            continue
        people: dict[str, list[str]] = defaultdict(list)
        with gzip.open(
            data / f"{text.removesuffix('-whole')}.jsonl.gz", "rt", encoding="utf-8"
        ) as file:
            for line in file:
                record = json.loads(line)
                people[record["user"]].append(record["text"][:CHARACTERS])
        part = work / f"{text}.jsonl"
        with part.open("w", encoding="utf-8") as out:
            for user, records in people.items():
                if len(records) >= RECORDS:
                    most = len(records) if text == WHOLE else RECORDS
                    for record in random.Random(user).sample(records, most):
                        out.write(json.dumps({"user": user, "text": record}) + "\n")
        prepare_store(
            open_source([str(part)], kind="jsonl"),
            work / text,
            tokenizer=StoreTokenizer.load(),
            seq_len=SEQ_LEN,
            held_out_users=0.5,
            held_out_examples=0.5,
        )


@dataclass(frozen=True, kw_only=True)
class Study:
    """Where everything lies.

    Args:
        work: stores and runs.
        base: the base model's folder.
        text: which of `TEXTS`.
    """

    work: Path
    base: Path
    text: str

    @property
    def store(self) -> UserStore:
        return UserStore.open(self.work / self.text)

    def jobs(self) -> Iterator[tuple[dict[str, Any], Callable[[], Row]]]:
        """Each row's key, and what makes the row."""
        if self.text != "commits":
            key = {"run": PLAIN, "n": f"{LONGER_STEPS} steps"}
            yield self._key(key), lambda: self._plain(LONGER_STEPS)
        if self.text == WHOLE:
            return
        for algorithm in ("ULS", "ELS"):
            for number, epsilon in enumerate(RIGHT):
                if (algorithm, number) == ("ULS", len(RIGHT) - 1):
                    continue
                key = {"run": "right", "algorithm": algorithm, "epsilon": epsilon, "n": number}
                right = plan(algorithm, epsilon, steps=STEPS)
                yield self._key(key), lambda right=right: self._extra(right, None)
        for name in BROKEN:
            small = name == "a thousandth of the noise"
            broken = plan(
                "ULS",
                None if small else BROKEN_EPSILON,
                steps=STEPS,
                noise_multiplier=NOISELESS if small else None,
            )
            key = {"run": name, "algorithm": "ULS"}
            yield self._key(key), lambda broken=broken, name=name: self._extra(broken, name)
        yield self._key({"run": PLAIN}), self._plain
        yield (
            self._key({"run": "right", "algorithm": "ULS", "epsilon": 4.0, "n": "long"}),
            self._long,
        )

        for private in (False, True):
            key = {"run": ATTACKED, "of": "ULS" if private else PLAIN, "references": REFERENCES}
            yield self._key(key), lambda private=private: self._referenced(private=private)

    def _key(self, key: dict[str, Any]) -> dict[str, Any]:
        return {"text": self.text, **key}

    def _extra(self, right: Plan, broken: str | None) -> Row:
        """A run by ``right`` with canaries, watched; broken below the observer if so asked."""
        from userdp.auditing.audit_run import contradictions
        from userdp.auditing.extra_run import extra_run

        work = self.work / f"extra-{os.getpid()}"
        claimed = right.guarantee().epsilon
        found = extra_run(
            self.store,
            right,
            config(self.base),
            work=work,
            canaries=CANARIES,
            sabotage=None if broken is None else BROKEN[broken],
        )
        return {"claimed": claimed, **evidence(found.to_dict(), contradictions(found, claimed))}

    def _plain(self, steps: int = LONG_STEPS) -> Row:
        """Without privacy, by default as many rows as the private run's, and the attack on it."""
        from userdp.auditing.audit_run import audit_run
        from userdp.training.loop import train

        out = self.work / f"{self.text}-plain-{steps}"
        shutil.rmtree(out, ignore_errors=True)
        begin = time.process_time()
        train(
            self.store,
            PlainPlan(steps=steps, batch_size=BATCH),
            config(self.base, learning_rate=4e-3),
            out=out,
            tensorboard=False,
        )
        trained = time.process_time() - begin
        found = audit_run(out, self.store, repeat=False, most_examples=RECORDS)
        return {"inference": attack(found["inference"]), "run_cpu_seconds": round(trained, 1)}

    def _referenced(self, *, private: bool) -> Row:
        """A run, by default settings of the long ones, and the attack against reference runs."""
        from userdp.auditing.audit_run import audit_run
        from userdp.training.loop import train

        out = self.work / f"{self.text}-referenced-{'uls' if private else 'plain'}"
        shutil.rmtree(out, ignore_errors=True)
        begin = time.process_time()
        train(
            self.store,
            plan("ULS", 4.0, steps=LONG_STEPS)
            if private
            else PlainPlan(steps=LONG_STEPS, batch_size=BATCH),
            config(self.base, learning_rate=2e-3 if private else 4e-3),
            out=out,
            tensorboard=False,
        )
        trained = time.process_time() - begin
        found = audit_run(
            out, self.store, repeat=False, references=REFERENCES, most_examples=RECORDS
        )
        row = {"inference": attack(found["inference"]), "references": attack(found["references"])}
        row["run_cpu_seconds"] = round(trained, 1)
        return row | ({"claimed": found["claimed_epsilon"]} if private else {})

    def _long(self) -> Row:
        """ULS at ε = 4, trained and then audited by every means."""
        from userdp.auditing.audit_run import audit_run
        from userdp.training.loop import train

        out = self.work / f"{self.text}-uls"
        shutil.rmtree(out, ignore_errors=True)
        begin = time.process_time()
        train(
            self.store,
            plan("ULS", 4.0, steps=LONG_STEPS),
            config(self.base),
            out=out,
            tensorboard=False,
        )
        trained = time.process_time()
        attacked = audit_run(out, self.store, repeat=False, most_examples=RECORDS)
        middle = time.process_time()
        found = audit_run(out, self.store, inference=False, canaries=CANARIES)
        return {
            "claimed": found["claimed_epsilon"],
            **evidence(found["extra_run"], found["flagged"]),
            "inference": attack(attacked["inference"]),
            "run_seconds": found["run_seconds"],
            "run_cpu_seconds": round(trained - begin, 1),
            "extra_run_cpu_seconds": round(time.process_time() - middle, 1),
        }


def evidence(extra: dict[str, Any], flagged: list[str]) -> Row:
    """What is kept of an extra run."""
    bound, steps = extra["bound"], extra["steps"]
    return {
        "canaries_lower": bound["epsilon_lower"],
        "canaries_most_detectable": bound["most_detectable"],
        "estimates": bound["estimates"],
        "steps_lower": steps["epsilon_lower"],
        "steps_least_detectable": steps["detectable_epsilon"],
        "noise_ratio": steps["noise_ratio"],
        "worst_move": steps["worst_move"],
        "checks": {
            check["name"]: {key: check[key] for key in ("p_value", "seen", "power", "flagged")}
            for check in steps["checks"]
        },
        "flagged": flagged,
        "users_left_out": extra["users_left_out"],
        "gradients": extra["gradients"],
        "planned_gradients": extra["planned_gradients"],
        "seconds": round(extra["seconds"], 1),
    }


def attack(found: dict[str, Any]) -> Row:
    """The attack's figures, its curve thinned."""
    values = dict(found)
    values["curve"] = [[round(x, 4) for x in point] for point in values["curve"][::2]]
    return values


def run(work: Path, base: Path, results: Path, texts: list[str], *, only_long: bool) -> None:
    """All missing rows; or those of the long runs."""
    for text in texts:
        for key, make in Study(work=work, base=base, text=text).jobs():
            if only_long and key["run"] not in (PLAIN, ATTACKED) and key.get("n") != "long":
                continue
            if name_of(key) in {name_of(row["key"]) for row in read_rows(results)}:
                continue
            begin = time.process_time()
            row = make()
            spent = round(time.process_time() - begin, 1)
            append_row(results, {"key": key, **row, "cpu_seconds": spent})
            print(f"{name_of(key)}: {spent:.0f} s of processor", file=sys.stderr, flush=True)


def tables(rows: list[Row]) -> str:
    """The results as Markdown."""
    out = ["| text | algorithm | claimed ε | canaries: ε ≥ (could prove) | steps: ε ≥ (catches) "]
    out[0] += "| gradients / run's | flagged |"
    out.append("|---|---|---|---|---|---|---|")
    right = [row for row in rows if row["key"]["run"] == "right"]
    for row in right:
        key = row["key"]
        long = f" ({LONG_STEPS} steps)" if key["n"] == "long" else ""
        out.append(
            f"| {key['text']} | {key['algorithm']}{long} | {row['claimed']:.4f} "
            f"| {row['canaries_lower']:.2f} ({row['canaries_most_detectable']:.2f}) "
            f"| {row['steps_lower']:.4f} ({row['steps_least_detectable']:.4f}) "
            f"| {row['gradients'] / row['planned_gradients']:.2f} "
            f"| {', '.join(row['flagged']) or 'nothing'} |"
        )
    below = [max(row["canaries_lower"], row["steps_lower"]) < row["claimed"] for row in right]
    out += ["", f"Lower bound below the claim in {sum(below)} of {len(below)} right runs.", ""]
    out += ["| text | broken | claimed ε | canaries: ε ≥ (could prove) | steps: ε ≥ | flagged |"]
    out.append("|---|---|---|---|---|---|")
    for row in rows:
        if row["key"]["run"] in BROKEN:
            out.append(
                f"| {row['key']['text']} | {row['key']['run']} | {row['claimed']:.4f} "
                f"| {row['canaries_lower']:.2f} ({row['canaries_most_detectable']:.2f}) "
                f"| {row['steps_lower']:.4f} | {', '.join(row['flagged']) or 'NOTHING'} |"
            )
    out += ["", "| text | run | members / others | AUC (95%) | found at 1% false alarms "]
    out[-1] += "| AUC against references (95%) | found |"
    out.append("|---|---|---|---|---|---|---|")
    for row in rows:
        if "inference" in row:
            found = row["inference"]
            better = row.get("references")
            out.append(
                f"| {row['key']['text']} | {attacked_run(row)} "
                f"| {found['members']} / {found['others']} | {area_in_words(found)} "
                f"| {found['tpr_at_low_fpr']:.1%} "
                + (f"| {area_in_words(better)} " if better else "| – ")
                + (f"| {better['tpr_at_low_fpr']:.1%} |" if better else "| – |")
            )
    return "\n".join(out)


def attacked_run(row: Row) -> str:
    """What was attacked, in words."""
    key = row["key"]
    if "claimed" in row:
        return f"ULS, ε = {row['claimed']:.4f}"
    return f"{PLAIN}, {key['n'] if key['run'] == PLAIN and 'n' in key else f'{LONG_STEPS} steps'}"


def area_in_words(found: dict[str, Any]) -> str:
    return f"{found['auc']:.3f} ({found['auc_low']:.3f} to {found['auc_high']:.3f})"


def draw(rows: list[Row], path: Path) -> None:
    """Bounds beside the claims, and the attack's curves."""
    from userdp.reporting.figures.drawing import panels, save

    figure, axes = panels(1 + len(TEXTS), width=4.6, height=4.2)
    right = sorted(
        (row for row in rows if row["key"]["run"] == "right"), key=lambda row: row["claimed"]
    )
    claims = [row["claimed"] for row in right]
    places = list(range(len(right)))
    axes[0].plot(places, claims, "k_", markersize=14, label="claimed ε")
    axes[0].plot(places, [row["steps_lower"] for row in right], "^", label="steps prove")
    axes[0].plot(places, [row["canaries_lower"] for row in right], "o", label="canaries prove")
    most = [row["canaries_most_detectable"] for row in right]
    axes[0].plot(places, most, ":", color="tab:gray", label="canaries could prove")
    axes[0].set_xlabel("right runs, by claim")
    axes[0].set_xticks([])
    axes[0].set_ylabel("ε")
    axes[0].set_ylim(bottom=-0.1)
    axes[0].legend(fontsize=7)
    for axis, text in zip(axes[1:], TEXTS, strict=True):
        for row in rows:
            if row["key"]["text"] != text or row["key"]["run"] != ATTACKED:
                continue
            for name, style in (("references", "-"), ("inference", "--")):
                found = row[name]
                false, true = zip(*found["curve"], strict=True)
                label = "ULS, ε = 4" if "claimed" in row else PLAIN
                label += ", references" if name == "references" else ", base model"
                color = "tab:green" if "claimed" in row else "tab:red"
                label += f": {area_in_words(found)}"
                axis.plot(false, true, style, color=color, label=label)
        axis.plot([0, 1], [0, 1], ":", color="tab:gray", label="chance")
        axis.set_title(f"user inference, {text}", size=9)
        axis.set_xlabel("false positive rate")
        axis.set_ylabel("true positive rate")
        axis.legend(fontsize=7)
    for axis in axes:
        axis.grid(alpha=0.3)
    save(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("stage", choices=("prepare", "run", "report"))
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--work", type=Path, default=Path("runs/audit-study"))
    parser.add_argument("--base", type=Path, default=Path("runs/surface/base/model"))
    parser.add_argument("--results", type=Path, default=RESULTS / "audit.jsonl")
    parser.add_argument("--png", type=Path, default=RESULTS / "audit.png")
    texts = [*TEXTS, WHOLE]
    parser.add_argument("--only", choices=texts, nargs="+", default=texts)
    parser.add_argument("--long", action="store_true", help="the two long runs of a text alone")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    if options.stage == "prepare":
        prepare(options.work, options.data)
        return
    if options.stage == "run":
        import torch

        torch.set_num_threads(options.threads)
        run(
            options.work,
            options.base.resolve(),
            options.results,
            options.only,
            only_long=options.long,
        )
        return
    rows = read_rows(options.results)
    draw(rows, options.png)
    print(tables(rows))


if __name__ == "__main__":
    main()
