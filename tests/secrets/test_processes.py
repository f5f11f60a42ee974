"""Several processes: what each says, and what the list of processes shows of them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.secrets.commands import SMALL
from tests.secrets.conftest import PLAN
from tests.secrets.scan import findings
from tests.secrets.watch import listen

NOBODYS = re.compile(
    rb"\bline \d+|\.py:\d+|\bpid:? ?\d+|\d+-\d+-\d+[T_ ]\d+:\d+:\d+\S*"
    rb"|made-up rows failed \(.*?\);"
)
"""Lines of source code, numbers of processes and times, which torchrun prints of its own accord;
and tokens that were drawn to try a model, of which one may happen to be a count of the store."""


def torchrun(*arguments: str) -> int:
    launch = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
    ]
    done = subprocess.run([*launch, "-m", "userdp", *arguments], timeout=500)
    return done.returncode


@pytest.mark.slow
def test_two_processes_that_train_one_model(planted, tmp_path, capfd):
    PLAN.save(tmp_path / "plan.json")
    line = f"train {planted.folder / 'store'} --out {tmp_path / 'run'} {SMALL}"
    plan = ["--plan", str(tmp_path / "plan.json")]
    said = listen(
        lambda: torchrun(*line.split(), *plan),
        capfd,
        tmp_path / "temporary",
    )
    assert said.status == 0, said.channels["stderr"].decode()
    assert b"torch.distributed.run" in said.channels["processes"]
    for channel, data in said.channels.items():
        assert findings(NOBODYS.sub(b"", data), planted.secrets) == [], channel


@pytest.mark.slow
def test_twin_a_process_that_prints_what_failed_is_caught(planted, tmp_path, capfd):
    text = Path(planted.folder / "input").iterdir().__next__().read_text()[:200]
    program = "import sys; raise ValueError(sys.stdin.read())"
    said = listen(
        lambda: subprocess.run([sys.executable, "-c", program], input=text.encode()).returncode,
        capfd,
        tmp_path / "temporary",
    )
    assert findings(said.channels["stderr"], planted.secrets)
