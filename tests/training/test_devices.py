"""A device that is not there is refused before anything is charged."""

import importlib
import inspect

import pytest
import torch

from tests.plans import uls_plan
from tests.training.toy import CONFIG
from userdp.codec import encode
from userdp.errors import UseError
from userdp.ledger import RunFolder, StoreLedger
from userdp.training.config import train_config
from userdp.training.constants import constants_digest
from userdp.training.devices import choose_device
from userdp.training.loop import train


@pytest.mark.parametrize(
    ("name", "says"), [("tpu", "no device"), ("meta", "cpu or cuda"), ("cuda:99", "no device")]
)
def test_what_is_not_there_is_refused_and_nobody_is_charged(store, tmp_path, name, says):
    with pytest.raises(UseError, match=says):
        train(store, uls_plan(), CONFIG, out=tmp_path / "run", device=name)
    assert not (tmp_path / "run").exists()
    assert StoreLedger(store.path).charges() == []


def test_several_processes_compute_on_the_cpu():
    assert choose_device("cpu", processes=4) == torch.device("cpu")
    with pytest.raises(UseError, match="several processes"):
        choose_device("cuda", processes=2)


def test_auto_is_cuda_where_there_is_one_and_the_cpu_for_several_processes(monkeypatch):
    for there, expected in ((True, "cuda"), (False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        assert choose_device() == choose_device("auto") == torch.device(expected)
        assert choose_device(processes=2) == torch.device("cpu")


@pytest.mark.parametrize(
    "command",
    [
        "train",
        "personalize",
        "probe",
        "evaluate",
        "generate",
        "audit",
        "sweep",
        "score",
        "federate",
    ],
)
def test_every_command_that_computes_asks_in_the_same_way(command):
    function = getattr(importlib.import_module(f"userdp.cli.{command}"), command)
    assert inspect.signature(function).parameters["device"].default == "auto"


def test_the_run_notes_what_was_asked_for_and_goes_on_by_what_is_asked_then(store, tmp_path):
    train(store, uls_plan(), CONFIG, out=tmp_path / "run", tensorboard=False)
    kept = RunFolder(tmp_path / "run").read_train()
    assert kept["device"] == "auto"
    assert train_config(kept) == CONFIG


def test_where_it_computes_is_none_of_the_constants_that_are_declared(store):
    options = encode(CONFIG)
    there = constants_digest(uls_plan(), {"device": "cuda", **options}, store)
    assert there == constants_digest(uls_plan(), options, store)
