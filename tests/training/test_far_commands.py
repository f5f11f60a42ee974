"""Commands on an accelerator: nothing is left on the host, and numbers are the CPU's.

The device is `tests.gradients.far_device`'s: an operation over tensors of both devices fails.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from torch import Tensor

from tests.gradients.far_device import FAR, MixedDevicesError, far_machine
from tests.plans import changed_plan, els_plan, uls_plan
from tests.speed import fast_then_slow
from tests.training.toy import CONFIG, toy_model
from userdp.cli.app import run as userdp
from userdp.clip import AdaptiveClipping
from userdp.codec import encode
from userdp.data.store import UserStore
from userdp.gradients import Units
from userdp.plans import Plan
from userdp.training import loop
from userdp.training.config import PlainPlan, RunOptions, TrainConfig, UnsafeSeeds, train_config
from userdp.training.evaluation import evaluate_splits

DEVICES = ("cpu", FAR.type)
SEEDS = {"unsafe_seeds": UnsafeSeeds(draws=5, noise=6)}


def on(device: str, arguments: list[Any], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """What ``userdp ARGUMENTS --device DEVICE`` says, on a machine that has the device."""
    capsys.readouterr()
    with far_machine() as machine:
        status = userdp([*map(str, arguments), "--device", device, "--json"])
    said = capsys.readouterr()
    assert status == 0, said
    assert (machine.products > 0) == (device == FAR.type), "it did not compute there"
    return json.loads(said.out)


def require_same(here: Any, there: Any, *, within: float = 1e-4) -> None:
    """Two answers, number by number."""
    assert type(here) is type(there)
    if isinstance(here, dict):
        assert set(here) == set(there)
        for name, value in here.items():
            require_same(value, there[name], within=within)
    elif isinstance(here, list):
        assert len(here) == len(there)
        for one, other in zip(here, there, strict=True):
            require_same(one, other, within=within)
    elif isinstance(here, float):
        assert there == pytest.approx(here, abs=within, rel=within)
    else:
        assert here == there


def trained(
    store: UserStore, out: Path, device: str, plan: Plan | PlainPlan, config: TrainConfig
) -> dict[str, Tensor]:
    """A run's released weights, computed on ``device``."""
    seeds = {} if isinstance(plan, PlainPlan) else SEEDS
    with far_machine() as machine:
        loop.train(store, plan, config, out=out, options=RunOptions(device=device), **seeds)
    assert (machine.products > 0) == (device == FAR.type), "it did not compute there"
    (path,) = (out / "model").glob("*.safetensors")
    return load_file(path)


def there(arguments: list[Any], capsys: pytest.CaptureFixture[str]) -> tuple[dict[str, Any], int]:
    """What a command that is told no device says on such a machine; the products computed there."""
    capsys.readouterr()
    with far_machine() as machine:
        status = userdp([*map(str, arguments), "--json"])
    said = capsys.readouterr()
    assert status == 0, said
    return json.loads(said.out), machine.products


RUNS: dict[str, tuple[Plan | PlainPlan, dict[str, Any]]] = {
    "plain": (PlainPlan(steps=3, batch_size=4), {}),
    "users": (uls_plan(steps=3), {}),
    "examples": (els_plan(steps=3), {}),
    "adapters": (uls_plan(steps=3), {"lora_rank": 2}),
    "averaged": (uls_plan(steps=3), {"averaging": "ema"}),
    "checkpoints": (uls_plan(steps=3), {"checkpoint_every": 1, "evaluate_every": 1}),
    "adam-bc": (uls_plan(steps=3), {"optimizer": "adam-bc"}),
    "activations again": (uls_plan(steps=3), {"activation_checkpointing": True}),
    "two rows a pass": (uls_plan(steps=3), {"micro_batch": 2, "engine": "auto"}),
    "adaptive": (
        changed_plan(
            uls_plan(steps=3), adaptive=AdaptiveClipping(count_noise_std=2.0, learning_rate=1.0)
        ),
        {},
    ),
}


@pytest.mark.parametrize("kind", fast_then_slow(RUNS))
def test_train_gives_there_what_it_gives_here(store, tmp_path, kind):
    plan, changes = RUNS[kind]
    config = train_config({**encode(CONFIG), **changes})
    here, there = (trained(store, tmp_path / on, on, plan, config) for on in DEVICES)
    assert set(here) == set(there)
    assert max(float((here[name] - there[name]).abs().max()) for name in here) < 1e-4


@pytest.fixture(scope="module")
def made(prepared, tmp_path_factory) -> Path:
    """A folder with a store, a model that learned nothing, ``base``, and a ``run``."""
    folder = tmp_path_factory.mktemp("made")
    shutil.copytree(prepared, folder / "store")
    store = UserStore.open(folder / "store")
    toy_model(store).save_pretrained(folder / "base")
    loop.train(store, uls_plan(steps=3), CONFIG, out=folder / "run")
    return folder


COMMANDS: dict[str, str] = {
    "evaluate": "evaluate RUN --store STORE",
    "generate": "generate RUN --records 5 --max-tokens 4 --seed 3 --prompt w1 --prompt w2",
    "personalize": "evaluate RUN --store STORE --personalize --set local.epochs=1 "
    "--set local.learning_rate=[0.1]",
    "personalize adapters": "evaluate RUN --store STORE --personalize --set local.epochs=1 "
    "--lora-rank 2",
    "score": "store score STORE --model BASE --out OUT --overwrite",
}


def test_twin_text_left_on_the_host_is_noticed(made, monkeypatch):
    monkeypatch.setattr(Units, "to", lambda units, device: units)
    with far_machine(), pytest.raises(MixedDevicesError):
        evaluate_splits(made / "run", UserStore.open(made / "store"), ["train"], device=FAR.type)


@pytest.mark.parametrize("command", fast_then_slow(COMMANDS, 2))
def test_a_command_says_there_what_it_says_here(made, tmp_path, capsys, command):
    words = COMMANDS[command]
    for name in ("RUN", "STORE", "BASE"):
        words = words.replace(name, str(made / name.lower()))
    words = words.replace("OUT", str(tmp_path / "out"))
    here, there = (on(device, words.split(), capsys) for device in DEVICES)
    require_same(here, there)
