"""How the corpus was written: ``python -m tests.formats.write_corpus FOLDER``, once.

What is in `corpus` is never written anew. When a format grows, write a second corpus beside it,
with what is new, and let `test_corpus` read both.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

from tests.claims.lives import PLAN, Teller, begin
from tests.sweeping.launch import request
from tests.training.toy import cycles, toy_store
from userdp.claims import claim
from userdp.data.user_store import UserStore
from userdp.sweeping.runs import run_sweep

KEPT = ("ledger.jsonl", "plan.json", "train.toml", "model", "adapter")


def write(folder: Path) -> None:
    """Every kind of line and of file once, by the commands that users have."""
    tell, at = Teller(), Path("work")  # relative: plans keep the name of a model's folder
    folder = folder.resolve()
    (folder / at).mkdir(parents=True)
    os.chdir(folder)
    store = toy_store(at / "made", cycles(12)).path.rename(folder / "store")
    opened = UserStore.open(store)
    tell.done("store", "stats", store, "--epsilon", 0.5, "--ask", "users")
    begin(opened, at / "run")
    begin(opened, at / "stopped", stop=2)
    tell.done("train", store, "--out", at / "stopped", "--resume")
    tell.done("evaluate", at / "run", "--store", store, "--epsilon", 0.25, "--no-base")
    tell.done("store", "stats", store)
    model, lora = ("--model", at / "run" / "model"), ("--lora-rank", 1)
    tell.done(
        "plan", store, *model, *lora, "--population", 100, "--delta", 1e-5,
        "--budget", 16, "--steps", 2, "--epsilon", 4, "--most-noise", 1e6,
        "--set", "measure.users=8", "--norms-out", folder / "norms.json",
        "--out", folder / "proposal.json",
    )  # fmt: skip
    options = ("--plan", folder / "proposal.json", *model, *lora)
    tell.done("train", store, "--out", at / "adapted", *options)
    run_sweep(opened, at / "sweep", request(opened, "private-selection", plan=PLAN))
    (at / "sweep" / "winner").rename(at / "winner")
    begin(opened, at / "unfinished", stop=2)
    for run in ("run", "stopped", "adapted", "winner", "unfinished"):
        for name in KEPT:
            if (at / run / name).is_dir():
                shutil.copytree(at / run / name, folder / run / name)
            elif (at / run / name).exists():
                (folder / run).mkdir(exist_ok=True)
                shutil.copy2(at / run / name, folder / run)
    for run in ("stopped", "unfinished"):
        shutil.rmtree(folder / run / "model", ignore_errors=True)
    shutil.rmtree(at)
    (folder / "store" / "places.jsonl").unlink()  # of what lies where the corpus was written
    names = ("store", "run", "stopped", "adapted", "winner", "unfinished")
    told = {name: claim(folder / name).to_dict() for name in names}
    (folder / "claims.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
