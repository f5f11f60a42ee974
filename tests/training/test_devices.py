"""A device that is not there is refused before anything is charged."""

import inspect

import pytest
import torch

import userdp
from tests.plans import uls_plan
from tests.training.toy import CONFIG
from userdp.cli.commands import function_of
from userdp.codec import encode
from userdp.errors import UseError
from userdp.ledger import RunFolder, StoreLedger
from userdp.training import steps as steps_module
from userdp.training.config import RunOptions, train_config
from userdp.training.devices import choose_device
from userdp.training.distributed import World
from userdp.training.loop import train
from userdp.training.opening import constants_digest


@pytest.mark.parametrize(
    ("name", "says"), [("tpu", "no device"), ("meta", "cpu or cuda"), ("cuda:99", "no device")]
)
def test_what_is_not_there_is_refused_and_nobody_is_charged(store, tmp_path, name, says):
    with pytest.raises(UseError, match=says):
        train(store, uls_plan(), CONFIG, out=tmp_path / "run", options=RunOptions(device=name))
    assert not (tmp_path / "run").exists()
    assert StoreLedger(store.path).charges() == []


@pytest.fixture
def devices(monkeypatch):
    """``devices(4, local_rank=1, processes=2)``: what torchrun says, and how many there are."""

    def say(count, *, local_rank=None, processes=1):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        told = {"LOCAL_RANK": local_rank, "LOCAL_WORLD_SIZE": processes}
        for name, value in told.items():
            if local_rank is None:
                monkeypatch.delenv(name, raising=False)
            else:
                monkeypatch.setenv(name, str(value))

    return say


def test_each_of_several_processes_takes_the_device_of_its_local_rank(devices):
    for rank in range(2):
        devices(2, local_rank=rank, processes=2)
        own = torch.device("cuda", rank)
        assert choose_device("cuda", processes=2) == choose_device(processes=2) == own
        assert choose_device("cuda", processes=16) == own, "eight machines of two"
    assert choose_device("cpu", processes=4) == torch.device("cpu")
    devices(2, local_rank=0, processes=1)
    assert choose_device("cuda:1", processes=2) == torch.device("cuda:1"), "one on each machine"


@pytest.mark.parametrize(
    ("count", "told", "name", "says"),
    [
        (1, {"local_rank": 1, "processes": 2}, "cuda", "no device 'cuda:1' here"),
        (0, {"local_rank": 0, "processes": 2}, "cuda", "sees 0 CUDA devices"),
        (4, {"local_rank": 1, "processes": 2}, "cuda:0", "all 2 processes of this machine"),
    ],
)
def test_processes_without_a_device_of_their_own_are_refused(devices, count, told, name, says):
    devices(count, **told)
    with pytest.raises(UseError, match=says):
        choose_device(name, processes=2)


def test_auto_is_cuda_where_each_process_has_one_and_else_the_cpu(devices):
    for count, expected in ((1, "cuda"), (0, "cpu")):
        devices(count)
        assert choose_device() == choose_device("auto") == torch.device(expected)
        assert choose_device(processes=2) == torch.device("cpu"), "nothing says which is whose"
    devices(1, local_rank=0, processes=2)
    assert choose_device(processes=2) == torch.device("cpu")


class Held:
    """A process that runs until it is told to end."""

    def __init__(self, arguments, environment):
        self.arguments, self.environment = arguments, environment
        self.status, self.asked_to_end = None, False

    def poll(self):
        return self.status

    def terminate(self):
        self.asked_to_end = True

    def wait(self):
        return -15


class TwoOnOne:
    """Two processes that both say where this one computes."""

    def all_gather_object(self, place):
        return [place, place]


def test_two_processes_on_one_device_are_refused():
    steps_module.require_own_devices(TwoOnOne(), torch.device("cpu"))
    steps_module.require_own_devices(World(), torch.device("cuda:0"))
    with pytest.raises(UseError, match="2 processes compute on cuda:0"):
        steps_module.require_own_devices(TwoOnOne(), torch.device("cuda:0"))


@pytest.mark.parametrize(
    "command",
    ["train", "plan", "evaluate", "generate", "audit", "tune", "store score", "federate"],
)
def test_every_command_that_computes_asks_in_the_same_way(command):
    asked = inspect.signature(function_of(command)).parameters["device"].default
    assert (asked or RunOptions().device) == "auto"


def test_the_run_notes_what_was_asked_for_and_goes_on_by_what_is_asked_then(store, tmp_path):
    train(store, uls_plan(), CONFIG, out=tmp_path / "run")
    kept = RunFolder(tmp_path / "run").read_train()
    assert kept["run"]["device"] == "auto"
    assert train_config(kept["learning"]) == CONFIG


def test_where_it_computes_is_none_of_the_constants_that_are_declared(store):
    userdp.train(store, uls_plan(), out="run", config=CONFIG, device="cpu", declare=True)
    digest = constants_digest(uls_plan(), encode(CONFIG), store)
    assert list(StoreLedger(store.path).history().declared) == [digest]
