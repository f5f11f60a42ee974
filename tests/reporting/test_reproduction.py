"""The command on the page makes the same plan and the same settings again."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from tests.reporting.conftest import MakeRun, small_plan
from tests.training.toy import CONFIG, toy_store
from userdp.accounting import Accountant
from userdp.adaptive import AdaptiveClipping
from userdp.cli.app import run as userdp
from userdp.cli.plan_options import PlanOptions, build_plan
from userdp.guarantees import Adjacency, ClipForm, LayerSplit, Sampling
from userdp.plan import Plan
from userdp.reporting.reproduction import train_command
from userdp.reporting.run_facts import read_run
from userdp.training.config import TrainConfig


def parsed(command: str) -> Plan:
    """The plan of a command's options, read by hand and not by the command line."""
    words = shlex.split(command)[5:]
    options: dict[str, object] = {}
    kinds = {"population": int, "group_size": int, "steps": int}
    texts = ("sampling", "accountant", "adjacency", "clip_form", "layer_split")
    while words:
        name = words.pop(0).removeprefix("--").replace("-", "_")
        if name not in PlanOptions.__slots__:
            break
        if name == "unsafe_shuffle":
            options[name] = True
        else:
            word = words.pop(0)
            options[name] = word if name in texts else kinds.get(name, float)(word)
    return build_plan(PlanOptions(**options))  # type: ignore[arg-type]


ULS, ELS = small_plan(Sampling.USERS, 4.0), small_plan(Sampling.EXAMPLES, 4.0)


@pytest.mark.parametrize(
    "plan",
    [
        ULS,
        ELS,
        replace(ULS, sampling_probability=1 / 3, population=9973, item_clip_norm=0.3),
        replace(ELS, accountant=Accountant.GROUP_PRIVACY),
        replace(ELS, adjacency=Adjacency.FIXED_GRAPH),
        replace(ULS, unsafe_shuffle=True, target_delta=1.5e-9),
        replace(ULS, clip_form=ClipForm.AUTOMATIC, clip_stability=0.05),
        replace(ULS, layer_split=LayerSplit.DIMENSION, clip_form=ClipForm.NORMALIZED),
        replace(ULS, adaptive=AdaptiveClipping(quantile=0.4, learning_rate=0.3)),
    ],
)
def test_the_commands_plan_is_the_runs(make_run: MakeRun, plan: Plan) -> None:
    found = parsed(train_command(read_run(make_run("run", plan, attempts=0))))
    assert replace(found, target_epsilon=None) == replace(plan, target_epsilon=None)


def test_the_command_asks_leave_for_a_large_delta(make_run: MakeRun) -> None:
    """Else it would be refused: δ is 1 over the ELS plan's examples, and within the rule of ULS."""
    asks = [" --allow-large-delta" in train_command(read_run(make_run(n, p)))
            for n, p in (("uls", ULS), ("els", ELS))]  # fmt: skip
    assert asks == [False, True]


def test_every_setting_of_training_is_judged(make_run: MakeRun) -> None:
    """A new setting must be let onto public pages by hand, or be named here as none of theirs."""
    from dataclasses import fields

    from userdp.reporting.run_facts import _COMMAND

    private = {"micro_batch", "checkpoint_every", "evaluate_every", "evaluate_users"}
    memory = {"activation_checkpointing"}
    assert {field.name for field in fields(TrainConfig)} == set(_COMMAND) | private | memory


def test_the_command_runs_and_repeats_plan_and_settings(tmp_path: Path) -> None:
    from userdp.training.loop import train

    store = toy_store(tmp_path)
    config = replace(CONFIG, warmup_steps=1, weight_decay=0.01, seed=3)
    train(store, small_plan(Sampling.USERS, 8.0, steps=2), config, out=tmp_path / "a",
          tensorboard=False)  # fmt: skip
    words = shlex.split(train_command(read_run(tmp_path / "a")))
    words = [{"STORE": str(store.path), "RUN": str(tmp_path / "b")}.get(w, w) for w in words]
    assert userdp([*words[1:], "--no-tensorboard"]) == 0
    kept = [json.loads((tmp_path / run / "config.json").read_text()) for run in ("a", "b")]
    for values in kept:
        values["plan"].pop("target_epsilon")
    assert kept[0]["train"] == kept[1]["train"]
    assert kept[0]["plan"] == kept[1]["plan"]
    ours, theirs = (read_run(tmp_path / run) for run in ("a", "b"))
    assert ours.guarantee == theirs.guarantee


def test_the_place_of_a_model_is_left_out(make_run: MakeRun) -> None:
    command = train_command(read_run(make_run()))
    assert "--model gpt2" in command
    assert "quetzal" not in command


def test_a_run_without_privacy_has_a_command_too(make_run: MakeRun) -> None:
    run = read_run(make_run(private=False, config={"steps": 7, "batch_size": 16}))
    assert "--privacy none --steps 7 --batch-size 16" in train_command(run)
