"""A device that is not there is refused; each of several processes has its own."""

import pytest
import torch

from tests.plans import uls_plan
from tests.training.toy import CONFIG
from userdp.core.errors import UseError
from userdp.ledger import RunFolder
from userdp.training.config import train_config
from userdp.training.devices import choose_device
from userdp.training.loop import train


@pytest.fixture
def devices(monkeypatch):
    """How many there are, and what torchrun says of a process."""

    def say(count, rank, processes):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))

    return say


def test_each_of_several_processes_takes_the_device_of_its_local_rank(devices):
    for rank in range(2):
        devices(2, rank, 2)
        own = torch.device("cuda", rank)
        assert choose_device("cuda", processes=2) == choose_device(processes=2) == own
        assert choose_device("cuda", processes=16) == own, "eight machines of two"
    assert choose_device("cpu", processes=4) == torch.device("cpu")
    devices(2, 0, 1)
    assert choose_device("cuda:1", processes=2) == torch.device("cuda:1"), "one on each machine"


@pytest.mark.parametrize(
    ("count", "rank", "name", "says"),
    [
        (1, 1, "cuda", "no device 'cuda:1' here"),
        (0, 0, "cuda", "sees 0 CUDA devices"),
        (4, 1, "cuda:0", "all 2 processes of this machine"),
        (1, 0, "tpu", "no device"),
        (1, 0, "meta", "cpu or cuda"),
    ],
)
def test_what_is_not_there_or_not_a_process_s_own_is_refused(devices, count, rank, name, says):
    devices(count, rank, 2)
    with pytest.raises(UseError, match=says):
        choose_device(name, processes=2)


def test_the_run_notes_what_was_asked_for_and_goes_on_by_what_is_asked_then(store, tmp_path):
    train(store, uls_plan(), CONFIG, out=tmp_path / "run")
    kept = RunFolder(tmp_path / "run").read_train()
    assert kept["run"]["device"] == "auto"
    assert train_config(kept["learning"]) == CONFIG
