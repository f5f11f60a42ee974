"""Commands on an accelerator: nothing is left on the host, and numbers are the CPU's.

The device is `tests.gradients.far_device`'s: an operation over tensors of both devices fails.
"""

from __future__ import annotations

import json
import math
import random
import shutil
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.auditing.toy import audit_plan
from tests.cli.test_demo import TINY
from tests.gradients.far_device import FAR, Far, MixedDevicesError, far_machine, on_far
from tests.plans import changed_plan, els_plan, uls_plan
from tests.plans_room.conftest import synthetic_norms
from tests.speed import fast_then_slow
from tests.training.toy import CONFIG, cycles, toy_model, toy_store
from userdp.claims.verify import verify_run
from userdp.cli.app import run as userdp
from userdp.cli.commands import command_of, module_of, names
from userdp.clip import AdaptiveClipping
from userdp.codec import encode
from userdp.commands.demo import run_demo
from userdp.data.store import UserStore
from userdp.errors import FailureError
from userdp.gradients import Units
from userdp.plans import Plan
from userdp.sweeping.request import TuningMode, build_request, grid
from userdp.sweeping.runs import run_sweep
from userdp.training import loop
from userdp.training.averaging import WeightAverage
from userdp.training.config import PlainPlan, RunOptions, TrainConfig, UnsafeSeeds, train_config
from userdp.training.evaluation import evaluate_splits
from userdp.training.models import load_model
from userdp.training.private_run import PrivateRun

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


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, {"lora_rank": 2}, {"optimizer": "adam-bc"}], ids=str)
@pytest.mark.parametrize(("first", "then"), [("cpu", FAR.type), (FAR.type, FAR.type)])
def test_a_run_goes_on_there_with_its_optimizer_and_its_average(
    store, tmp_path, monkeypatch, changes, first, then
):
    config = train_config({**encode(CONFIG), "averaging": "ema", "checkpoint_every": 1, **changes})
    honest = PrivateRun._step

    def step(run):
        if run.done == 2:
            raise FailureError("broken off")
        return honest(run)

    run = {"out": tmp_path / "run"}
    with far_machine():
        monkeypatch.setattr(PrivateRun, "_step", step)
        with pytest.raises(FailureError, match="broken off"):
            loop.train(store, uls_plan(steps=4), config, options=RunOptions(device=first), **run)
        monkeypatch.setattr(PrivateRun, "_step", honest)
        loop.train(
            store, uls_plan(steps=4), config, options=RunOptions(device=then), resume=True, **run
        )
    assert not verify_run(run["out"]).problems


def test_an_average_goes_on_where_the_weights_are():
    kept = {"weight": torch.full((2, 3), 5.0), "bias": torch.full((2,), 7.0)}
    model = on_far(torch.nn.Linear(3, 2))
    with far_machine():
        average = WeightAverage(model, decay=0.5)
        for name, value in average.values.items():
            value.copy_(kept[name])
        average.updates = 100
        assert average.values["weight"].tolist() == kept["weight"].tolist()
        average.update()
        assert all(isinstance(value, Far) for value in average.values.values())
    assert average.updates == 101


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


@pytest.mark.slow
def test_an_audit_and_its_references_compute_there(tmp_path, capsys):
    store = toy_store(tmp_path, cycles(120), held_out=0.2)
    train = {
        "out": tmp_path / "run",
    }
    loop.train(store, audit_plan(population=120, steps=12), CONFIG, **train)
    words = f"audit {train['out']} --store {store.path} --canaries 8 --references 2"
    here, there = (on(device, words.split(), capsys) for device in DEVICES)
    require_same(here["inference"], there["inference"])
    assert here["passed"]
    assert there["passed"]
    assert there["references"]["runs"] == 2


@pytest.mark.slow
def test_trials_of_a_sweep_and_their_scores_compute_there(made, tmp_path):
    store = UserStore.open(made / "store")
    asked = build_request(store, TuningMode.NON_PRIVATE, grid([uls_plan(steps=2)], CONFIG, axes={}))
    with far_machine() as machine:
        done = run_sweep(store, tmp_path / "sweep", asked, device=FAR.type)
    assert machine.products > 0
    assert done.winner is not None


@pytest.fixture
def play(tmp_path) -> Path:
    coin = random.Random(0)
    lines = [
        {"user": f"play/{who}", "text": " ".join(coin.choices(["to", "be", "or", "not"], k=12))}
        for who in range(10)
        for _ in range(4)
    ]
    path = tmp_path / "play.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)) + "\n")
    return path


FEDERATE = (
    "--silos 2 --rounds 2 --batch-size 5 --items-per-silo 40 --subjects-per-silo 10 "
    "--runtime in-process"
)
TEXT = "--model new " + " ".join(
    f"--set model.{one}" for one in ("seq_len=16", "layers=1", "width=8", "heads=2")
)


def federated(
    data: Path, out: Path, device: str, algorithm: str, options: str, capsys
) -> dict[str, Any]:
    words = f"federate {data} --out {out} --algorithm {algorithm} {FEDERATE} {options}"
    said = on(device, words.split(), capsys)
    del said["federation"]
    said["claim"] = said["claim"]["epsilon"]  # the rest names runs
    if algorithm != "fedavg":  # whose noise is another each time
        assert 0 < said.pop("operator_only")["loss"] < math.inf
    return said


@pytest.mark.parametrize(
    "algorithm", fast_then_slow(["fedavg", "local-group-dp", "higradavg-dp", "user-ldp"])
)
def test_silos_compute_there_and_so_does_who_measures_them(play, tmp_path, capsys, algorithm):
    here, far = (
        federated(play, tmp_path / device, device, algorithm, TEXT, capsys) for device in DEVICES
    )
    require_same(here, far)


def test_twin_items_of_a_silo_left_on_the_host_are_noticed(play, tmp_path, monkeypatch):
    monkeypatch.setattr(Units, "to", lambda units, device: units)
    words = f"federate {play} --out {tmp_path / 'f'} --algorithm fedavg {FEDERATE} {TEXT}"
    with far_machine(), pytest.raises(MixedDevicesError):
        userdp([*words.split(), "--device", FAR.type])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["all weights", "adapters"])
def test_what_was_trained_there_leaves_there_and_verifies(store, tmp_path, capsys, kind):
    """Adapters are merged into the model that leaves: on the CPU, beside the one that trained."""
    config = train_config({**encode(CONFIG), "lora_rank": 2 if kind == "adapters" else None})
    run, leaves = tmp_path / "run", tmp_path / "leaves"
    with far_machine():
        loop.train(store, uls_plan(steps=2), config, out=run, options=RunOptions(device=FAR.type))
    there(["export", run, "--out", leaves], capsys)
    there(["verify", leaves], capsys)
    there(["report", run, "--out", tmp_path / "report.html"], capsys)
    if kind == "adapters":
        released = load_file(leaves / "model.safetensors")
        base = load_model(config, store)
        merged = peft.PeftModel.from_pretrained(base, leaves / "adapter").merge_and_unload()
        moved = {name: tensor for name, tensor in merged.state_dict().items() if name in released}
        assert set(moved) == set(released)
        assert max(float((moved[name] - released[name]).abs().max()) for name in moved) < 1e-6
        assert any(
            float(v.abs().max()) > 0
            for n, v in load_file(leaves / "adapter" / "adapter_model.safetensors").items()
            if "lora_B" in n
        )


@pytest.mark.slow
def test_a_cost_is_predicted_of_the_hardware_that_is_named_whatever_is_there(
    made, tmp_path, capsys
):
    """A look at small models is taken on the CPU: a GPU beside it may not change what is said."""
    norms = tmp_path / "norms.json"
    synthetic_norms(most=4).save(norms)
    words = [
        *("plan", made / "store", "--norms", norms, "--budget", 16, "--steps", 6, "--epsilon", 4),
        *("--population", 100, "--delta", 1e-5, "--most-noise", 1000, "--json"),
        *("--hardware", "h100x2", "--model", "bundled", "--out", tmp_path / "plan.json"),
        "--overwrite",
    ]
    assert userdp([*map(str, words)]) == 0
    here = json.loads(capsys.readouterr().out)
    far, _ = there(words, capsys)
    require_same(here, far)


@pytest.mark.slow
def test_the_demo_computes_there(tmp_path):
    with far_machine() as machine:
        result = run_demo(TINY, tmp_path / "demo")
    assert machine.products > 0
    assert [run["algorithm"] for run in result["runs"]] == ["ULS", "ELS"]


ALSO = {"train", "tune", "audit", "selftest", "federate", "plan", "demo"}
"""Commands that run above and are no row of a table."""


def test_every_command_that_computes_is_here():
    """Those from which some import leads to torch, wherever in a function it stands."""
    grimp = pytest.importorskip("grimp")
    graph = grimp.build_graph("userdp", include_external_packages=True, cache_dir=None)
    computes = {name for name in names() if graph.chain_exists(module_of(name).__name__, "torch")}
    assert computes == ALSO | {command_of(words.split()) for words in COMMANDS.values()}


@pytest.mark.slow
def test_the_selftest_asks_there(made, capsys):
    said = on(FAR.type, ["selftest", "--model", made / "base"], capsys)
    assert said["device"] == str(FAR)
    assert said["passed"]
