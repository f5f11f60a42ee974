"""A real deployment on loopback: a SuperLink and three SuperNodes, of which one is killed."""

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="the extra `federated` is not installed")

from tests.federated.toys import FACTS, WIDTH, made_in, plan
from tests.training.toy import attempts
from userdp.core.files import read_lines
from userdp.federated.federation_plan import LanguageModel, claim_of
from userdp.federated.flower import write_app
from userdp.federated.rounds import ROUNDS_FILE
from userdp.federated.silo import silo_folder

BIN = Path(sys.executable).parent
# Flower's processes import userdp and nothing of the tests, whose model they would not know.
MODEL = LanguageModel(model="new", layers=1, width=8, heads=2, seq_len=WIDTH, **FACTS)


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def listens(port):
    with socket.socket() as trying:
        return trying.connect_ex(("127.0.0.1", port)) == 0


class Processes(ExitStack):
    """Flower's processes, each with a log. One that ends too early is an error with all of them."""

    def __init__(self, logs):
        super().__init__()
        self.logs, self.running = logs, {}

    def start(self, name, *command):
        log = self.enter_context((self.logs / f"{name}.log").open("wb"))
        line = [str(BIN / command[0]), *map(str, command[1:])]
        self.running[name] = subprocess.Popen(
            line, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        self.callback(self.stop, name)

    def stop(self, name, how=signal.SIGTERM):
        if process := self.running.pop(name, None):
            with suppress(ProcessLookupError):  # it had ended
                os.killpg(process.pid, how)
                process.wait(20)

    def until(self, condition, what, seconds=400):
        end = time.monotonic() + seconds
        while not condition():
            ended = [name for name, process in self.running.items() if process.poll() is not None]
            if (ended and not condition()) or time.monotonic() > end:
                logs = [f"{p.name}:\n{p.read_text()[-3000:]}" for p in self.logs.glob("*.log")]
                pytest.fail("\n".join([*logs, f"ended: {ended}; no {what} within {seconds} s"]))
            time.sleep(0.1)


@pytest.mark.slow
def test_three_silos_go_on_when_one_is_killed_in_a_round(tmp_path, monkeypatch):
    made = plan(8.0, rounds=3, local_steps=30, sampling_probability=0.5, model=MODEL)
    folder = made_in(tmp_path, made)
    project = write_app(folder) / "pyproject.toml"
    project.write_text(project.read_text().replace("3600.0", "120.0"))

    port, home = free_port(), tmp_path / "home"
    home.mkdir()
    (home / "config.toml").write_text(
        f'[superlink.here]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    )
    # The SuperLink starts `flower-superexec` by its bare name, as from an activated environment.
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    environment = {"FLWR_HOME": str(home), "FLWR_TELEMETRY_ENABLED": "0", "PATH": path}
    for name, value in {**environment, "OMP_NUM_THREADS": "1"}.items():
        monkeypatch.setenv(name, value)

    def charged(index):
        run = silo_folder(folder, index) / "run"
        return attempts(run) if (run / "ledger.jsonl").exists() else 0

    def rounds():
        return read_lines(folder / ROUNDS_FILE)

    with Processes(tmp_path) as flower:
        flower.start(
            "superlink",
            *("flower-superlink", "--insecure", "--port", port),
            "--disable-runtime-dependency-installation",
        )
        flower.until(lambda: listens(port), "SuperLink")
        for index in range(3):
            flower.start(
                f"supernode-{index}",
                *("flower-supernode", "--superlink", f"127.0.0.1:{port}"),
                *("--insecure", "--port", free_port(), "--node-config"),
                f'silo="{silo_folder(folder, index)}" index={index}',
            )
        # It shows the server's log, and ends when the run does.
        flower.start("run", "flwr", "run", folder / "app", "here", "--stream")
        flower.until(lambda: charged(2) > made.local.steps, "second round")
        flower.stop("supernode-2", signal.SIGKILL)
        flower.until(lambda: len(rounds()) == 3, "third round")

    assert [line["replied"] for line in rounds()] == [[0, 1, 2], [0, 1], [0, 1]]
    assert (charged(0), charged(1)) == (90, 90)
    assert 30 < charged(2) < 60  # the interrupted round's steps stay charged
    assert claim_of(folder).guarantee == made.guarantee()
