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

from tests.auditing.toy import audit_plan
from tests.gradients.far_device import MixedDevicesError, far_machine
from tests.plans import els_plan, uls_plan
from tests.self_check import assume_passed
from tests.speed import fast_then_slow
from tests.sweeping.launch import InProcess
from tests.training.toy import CONFIG, cycles, toy_model, toy_store
from userdp.cli.app import run as userdp
from userdp.codec import encode
from userdp.data.store import UserStore
from userdp.gradients import Units
from userdp.plans import Plan
from userdp.sweeping.request import TuningMode, build_request, grid
from userdp.sweeping.sweep import run_sweep
from userdp.training import loop, side_by_side
from userdp.training.config import PlainPlan, TrainConfig, train_config
from userdp.training.evaluate_run import evaluate_splits

DEVICES = ("cpu", "xla")
SEEDS = {"unsafe_seed": 5, "unsafe_noise_seed": 6}


def on(device: str, arguments: list[Any], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """What ``userdp ARGUMENTS --device DEVICE`` says, on a machine that has the device."""
    capsys.readouterr()
    with far_machine() as machine:
        status = userdp([*map(str, arguments), "--device", device, "--json"])
    said = capsys.readouterr()
    assert status == 0, said
    assert (machine.products > 0) == (device == "xla"), "it did not compute there"
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
        loop.train(store, plan, config, out=out, device=device, tensorboard=False, **seeds)
    assert (machine.products > 0) == (device == "xla"), "it did not compute there"
    (path,) = (out / "model").glob("*.safetensors")
    return load_file(path)


RUNS: dict[str, tuple[Plan | PlainPlan, dict[str, Any]]] = {
    "plain": (PlainPlan(steps=3, batch_size=4), {}),
    "users": (uls_plan(steps=3), {}),
    "examples": (els_plan(steps=3), {}),
    "adapters": (uls_plan(steps=3), {"lora_rank": 2}),
    "averaged": (uls_plan(steps=3), {"averaging": "ema"}),
    "checkpoints": (uls_plan(steps=3), {"checkpoint_every": 1, "evaluate_every": 1}),
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
    assume_passed()
    loop.train(store, uls_plan(steps=3), CONFIG, out=folder / "run", tensorboard=False)
    return folder


COMMANDS: dict[str, str] = {
    "evaluate": "evaluate RUN --store STORE",
    "generate": "generate RUN --records 5 --max-tokens 4 --seed 3 --prompt w1 --prompt w2",
    "personalize": "personalize RUN --store STORE --epochs 1 --learning-rate 0.1",
    "personalize adapters": "personalize RUN --store STORE --epochs 1 --lora-rank 2",
    "probe": "probe STORE --users 8 --seed 4 --model RUN/model --out OUT --overwrite",
    "score": "score STORE --model BASE --out OUT --overwrite",
}


def test_twin_text_left_on_the_host_is_noticed(made, monkeypatch):
    monkeypatch.setattr(Units, "to", lambda units, device: units)
    with far_machine(), pytest.raises(MixedDevicesError):
        evaluate_splits(made / "run", UserStore.open(made / "store"), ["train"], device="xla")


@pytest.mark.parametrize("command", fast_then_slow(COMMANDS, 2))
def test_a_command_says_there_what_it_says_here(made, tmp_path, capsys, command):
    words = COMMANDS[command]
    for name in ("RUN", "STORE", "BASE"):
        words = words.replace(name, str(made / name.lower()))
    words = words.replace("OUT", str(tmp_path / "out"))
    here, there = (on(device, words.split(), capsys) for device in DEVICES)
    require_same(here, there)


@pytest.mark.slow
def test_an_audit_and_its_references_compute_there(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(side_by_side, "launch", InProcess())
    store = toy_store(tmp_path, cycles(120), held_out=0.2)
    assume_passed()
    train = {"out": tmp_path / "run", "tensorboard": False}
    loop.train(store, audit_plan(population=120, steps=12), CONFIG, **train)
    words = f"audit {train['out']} --store {store.path} --canaries 8 --references 2"
    here, there = (on(device, words.split(), capsys) for device in DEVICES)
    require_same(here["inference"], there["inference"])
    assert here["passed"]
    assert there["passed"]
    assert there["references"]["runs"] == 2


@pytest.mark.slow
def test_trials_of_a_sweep_and_their_scores_compute_there(made, tmp_path):
    store, launch = UserStore.open(made / "store"), InProcess()
    asked = build_request(store, TuningMode.NON_PRIVATE, grid([uls_plan(steps=2)], CONFIG, axes={}))
    with far_machine() as machine:
        done = run_sweep(
            store, tmp_path / "sweep", asked, launch=launch, poll=0, tensorboard=False, device="xla"
        )
    assert machine.products > 0
    assert [call[call.index("--device") + 1] for call in launch.calls] == ["xla"]
    assert done.winner is not None


@pytest.mark.slow
def test_the_selftest_asks_there(made, capsys):
    said = on("xla", ["selftest", "--model", made / "base", "--rounds", 1, "--length", 8], capsys)
    assert said["device"] == "xla:0"
    assert said["passed"]
