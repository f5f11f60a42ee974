"""Many runs in one store: what a look at the store, and one run more, cost."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.faults.soak.measured import cost_of, cost_of_process
from benchmarks.faults.soak.people import prepare_few

STAGES = (50, 100, 200)


def rows(folder: Path, stage: int) -> Iterator[dict[str, Any]]:
    """One row a command; ``folder`` keeps the store and its runs from stage to stage."""
    store = prepare_few(folder)
    yield {"what": "one run more", **_train_up_to(folder, stage)}
    last = folder / f"run-{stage:03d}"
    report = folder / "report.html"
    for what, arguments in (
        ("account --ledger RUN", ("account", "--ledger", last)),
        ("report RUN", ("report", last, "--out", report, "--overwrite")),
        ("budget STORE", ("budget", store)),
        ("members STORE", ("members", store)),
        ("verify RUN", ("verify", last)),
        ("verify STORE", ("verify", store)),
    ):
        yield {"what": what, **asdict(cost_of(*arguments))}


def _train_up_to(folder: Path, count: int) -> dict[str, float]:
    """Train runs of one step until there are ``count``; what the last ten cost each."""
    done = len(list(folder.glob("run-*/model")))
    cost = cost_of_process([sys.executable, "-c", _RUNS, str(folder), str(done), str(count)])
    costs = [float(one) for one in (folder / "costs.txt").read_text("ascii").split()]
    last = costs[:count][-10:]
    mean = round(sum(last) / len(last), 2)
    return {"cpu": mean, "seconds": cost.seconds, "peak": cost.peak}


_RUNS = """
import sys, time
from pathlib import Path
import torch
from tests.plans import uls_plan
from tests.training.toy import CONFIG
from userdp.data.store import UserStore
from userdp.training.config import PrivateOptions
from userdp.training.models import new_model
from userdp.training.private import make_private

folder, done, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(1)
store = UserStore.open(folder / "store")
plan = uls_plan(population=100, cohort_size=1, steps=1)
alone = PrivateOptions(engine="reference")
for number in range(done + 1, count + 1):
    begin = time.process_time()
    model = new_model(CONFIG, vocab_size=store.meta.vocab_size, seq_len=store.meta.seq_len)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    out = folder / f"run-{number:03d}"
    with make_private(model, optimizer, store, plan, out=out, options=alone) as run:
        for step in run:
            optimizer.step()
        run.save()
    with (folder / "costs.txt").open("a") as file:
        print(time.process_time() - begin, file=file)
"""
