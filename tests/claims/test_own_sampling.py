"""A store in which somebody trained by a sampling of their own is readable without its module."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.claims.lives import PLAN
from tests.training.toy import cycles, toy_store

OWN = Path(__file__).parents[2] / "docs/examples/extending/own_sampling.py"
TRAINING = """
import sys
from pathlib import Path
import userdp
from userdp.core.clip import Clip
from userdp.noise import Gaussian
from userdp.plans import Budget
sys.path.insert(0, sys.argv[2])
import own_sampling
plan = userdp.Plan(
    sampling=own_sampling.EveryUser(group_size=2), clip=Clip(l2_norm=1.0),
    noise=Gaussian(multiplier=4.0), steps=2, population=100, budget=Budget(target_delta=1e-5),
)
toy = {"layers": 1, "width": 16, "heads": 2, "learning_rate": 0.01, }
for name, model in (("run", "new"), ("next", sys.argv[1] + "/run/model")):
    run = userdp.train(
        sys.argv[1] + "/store", plan, out=sys.argv[1] + "/" + name, model=model, **toy
    )
print(userdp.claim(sys.argv[1] + "/store").guarantee.epsilon)
"""


COMMANDS = """
import sys
from tests.claims.lives import LEARNING, PLAN, SHAPE, Teller
folder = sys.argv[1]
store, tell = folder + "/store", Teller()
before = tell.done("account", "--ledger", store)
print(before["epsilon"], before["parts"][0]["what"])
assert tell.done("store", "budget", store)["claim"]["epsilon"] == before["epsilon"]
assert tell.done("verify", store)["ok"] and tell.done("store", "stats", store)
tell.done("store", "stats", store, "--epsilon", 0.5, "--ask", "users")
PLAN.save(folder + "/plan.json")
here = folder + "/here"
model = ("--model", "new", *SHAPE, *LEARNING)
run = tell.done("train", store, "--plan", folder + "/plan.json", "--out", here, *model)
assert tell.done("verify", here)["ok"]
after = tell.done("account", "--ledger", store)
print(run["epsilon"], after["epsilon"])
print(tell("account", "--ledger", folder + "/run")[1])
"""


def python(code: str, *words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done


def test_all_commands_keep_the_line_and_charge_it_as_recorded(tmp_path):
    """Processes of their own: in this one another test may have imported the sampling."""
    toy_store(tmp_path, cycles(16))
    epsilon = float(python(TRAINING, tmp_path, OWN.parent).stdout.split()[-1])
    done = python(COMMANDS, tmp_path)
    before, after, of_its_own = done.stdout.strip().splitlines()
    assert float(before.split()[0]) == epsilon
    assert "training by own_sampling.EveryUser, as recorded" in before
    of_run, of_store = map(float, after.split())
    assert of_run == of_store == pytest.approx(epsilon + 0.5 + PLAN.guarantee().epsilon)
    assert "import the module that defines it" in of_its_own, "of the run's own ledger"
