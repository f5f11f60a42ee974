"""A device that is not there is refused before anything is charged."""

import pytest
import torch

from tests.plans import uls_plan
from tests.training.toy import CONFIG
from userdp.errors import UseError
from userdp.ledger import StoreLedger
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
