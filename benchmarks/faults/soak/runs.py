"""Many runs in one store: what a look at the store, and one run more, cost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.faults.crashes.scenes.base import must, prepare
from benchmarks.faults.soak.measured import cost_of, cost_of_process

STAGES = (50, 100, 200)


def rows(folder: Path) -> Iterator[dict[str, Any]]:
    """One row a command and stage; ``folder`` keeps the store between calls."""
    store = folder / "store"
    if not store.exists():
        folder.mkdir(parents=True, exist_ok=True)
        must(prepare(folder))
    for stage in STAGES:
        yield {"number": stage, "what": "one run more", **_train_up_to(folder, stage)}
        last = folder / f"run-{stage:03d}"
        for what, arguments in (
            ("account --ledger RUN", ("account", "--ledger", last)),
            ("report RUN", ("report", last, "--out", folder / "r.html", "--overwrite")),
            ("budget STORE", ("budget", store)),
            ("members STORE", ("members", store)),
            ("verify RUN", ("verify", last)),
            ("verify STORE", ("verify", store)),
        ):
            cost = cost_of(*arguments)
            row = {"number": stage, "what": what, "cpu": cost.cpu}
            yield row | {"seconds": cost.seconds, "peak": cost.peak}


def _train_up_to(folder: Path, count: int) -> dict[str, float]:
    """Train runs of one step until there are ``count``; what the last ten cost each."""
    import sys

    done = len(list(folder.glob("run-*/model")))
    script = [sys.executable, "-c", _RUNS, str(folder), str(done), str(count)]
    cost = cost_of_process(script)
    lines = (folder / "costs.txt").read_text("ascii").split()
    last = [float(one) for one in lines][-10:]
    return {"cpu": round(sum(last) / len(last), 3), "peak": cost.peak, "seconds": cost.seconds}


_RUNS = """
import sys, time
from pathlib import Path
from tests.training.toy import CONFIG
import torch
from userdp.data.store import UserStore
from userdp.training.models import new_model
from userdp.training.private import make_private
from tests.plans import uls_plan

folder, done, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(1)
store = UserStore.open(folder / "store")
plan = uls_plan(population=100, cohort_size=1, steps=1)
for number in range(done + 1, count + 1):
    begin = time.process_time()
    model = new_model(CONFIG, vocab_size=store.meta.vocab_size, seq_len=store.meta.seq_len)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = make_private(model, optimizer, store, plan, out=folder / f"run-{number:03d}", engine="reference")
    with run:
        for step in run:
            optimizer.step()
        run.save()
    with (folder / "costs.txt").open("a") as file:
        print(time.process_time() - begin, file=file)
"""
