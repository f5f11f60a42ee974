"""A store in which somebody trained by a sampling of their own is readable without its module."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import pytest

import userdp
from tests.claims.lives import LEARNING, PLAN, SHAPE, Teller
from tests.kills import run_apart
from tests.training.toy import cycles, toy_store
from userdp.noise import Gaussian
from userdp.noise.clip_forms import Clip
from userdp.plans import Budget

EXAMPLES = Path(__file__).parents[2] / "docs/examples/extending"


def train_by_it(folder: str) -> None:
    """Two runs, the second on top of the first; ε of the store."""
    sys.path.insert(0, str(EXAMPLES))
    plan = userdp.Plan(
        sampling=import_module("own_sampling").EveryUser(group_size=2), clip=Clip(l2_norm=1.0),
        noise=Gaussian(multiplier=4.0), steps=2, population=100, budget=Budget(target_delta=1e-5),
    )  # fmt: skip
    toy = {"layers": 1, "width": 16, "heads": 2, "learning_rate": 0.01}
    for name, model in (("run", "new"), ("next", f"{folder}/run/model")):
        userdp.train(f"{folder}/store", plan, out=f"{folder}/{name}", model=model, **toy)
    print(userdp.claim(f"{folder}/store").guarantee.epsilon)


def go_on_without_it(folder: str) -> None:
    """ε and words of its part; ε of a run of userdp's own and of the store; what its run says."""
    store, here, tell = f"{folder}/store", f"{folder}/here", Teller()
    before = tell.done("account", "--ledger", store)
    assert tell.done("store", "budget", store)["claim"]["epsilon"] == before["epsilon"]
    assert tell.done("verify", store)["ok"]
    assert tell.done("store", "stats", store)
    tell.done("store", "stats", store, "--epsilon", 0.5, "--ask", "users")
    PLAN.save(Path(folder) / "plan.json")
    model = ("--model", "new", *SHAPE, *LEARNING)
    run = tell.done("train", store, "--plan", f"{folder}/plan.json", "--out", here, *model)
    assert tell.done("verify", here)["ok"]
    after = tell.done("account", "--ledger", store)
    words = before["parts"][0]["what"], tell("account", "--ledger", f"{folder}/run")[1]["hint"]
    print(before["epsilon"], run["epsilon"], after["epsilon"], *words, sep=";")


@pytest.mark.slow
def test_all_commands_keep_the_line_and_charge_it_as_recorded(tmp_path):
    """Processes of their own: in this one another test may have imported the sampling."""
    toy_store(tmp_path, cycles(16))
    epsilon = float(run_apart(train_by_it, tmp_path)[-1][0])
    *prices, part, of_its_own = run_apart(go_on_without_it, tmp_path)[-1]
    before, of_run, of_store = map(float, prices)
    assert before == epsilon
    assert "training by own_sampling.EveryUser, as recorded" in part
    assert of_run == of_store == pytest.approx(epsilon + 0.5 + PLAN.guarantee().epsilon)
    assert "import the module that defines it" in of_its_own, "of the run's own ledger"
