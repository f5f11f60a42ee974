"""A real deployment on loopback: a SuperLink and three SuperNodes, of which one is killed."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="the extra `federated` is not installed")

from tests.federated.plans import NUMBERS, plan
from tests.federated.toys import images
from userdp.federated.flower import write_app
from userdp.federated.rounds import read_rounds
from userdp.federated.silo import silo_folder
from userdp.federated.simulation import claim_of, make_federation
from userdp.ledger.journal import read_entries

BIN = Path(sys.executable).parent


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def until(condition, seconds, what):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waited {seconds} s for {what}"
        time.sleep(0.2)


@pytest.mark.slow
def test_three_silos_go_on_when_one_is_killed_in_a_round(tmp_path, monkeypatch):
    made = plan(8.0, rounds=3, local_steps=30, sampling_probability=0.5)
    folder = tmp_path / "federation"
    make_federation(folder, made, images(40), tokenizer=NUMBERS)
    project = write_app(folder) / "pyproject.toml"
    project.write_text(project.read_text().replace("3600.0", "120.0"))

    port = free_port()
    home = tmp_path / "home"
    home.mkdir()
    (home / "config.toml").write_text(
        f'[superlink.here]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    )
    monkeypatch.setenv("FLWR_HOME", str(home))
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "0")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    # The SuperLink starts `flower-superexec` by its bare name, as from an activated environment.
    monkeypatch.setenv("PATH", f"{BIN}{os.pathsep}{os.environ['PATH']}")
    started = []

    def start(*command, log):
        process = subprocess.Popen(
            [str(BIN / command[0]), *map(str, command[1:])],
            stdout=(tmp_path / log).open("wb"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        started.append(process)
        return process

    def attempts(index):
        path = silo_folder(folder, index) / "run" / "ledger.jsonl"
        return [e for e in read_entries(path) if e["kind"] == "attempt"] if path.exists() else []

    try:
        start(
            *("flower-superlink", "--insecure", "--port", port),
            "--disable-runtime-dependency-installation",
            log="superlink.log",
        )
        until(lambda: _listens(port), 180, "the SuperLink")
        nodes = []
        for index in range(3):
            nodes.append(
                start(
                    *("flower-supernode", "--superlink", f"127.0.0.1:{port}"),
                    *("--insecure", "--port", free_port(), "--node-config"),
                    f'silo="{silo_folder(folder, index)}" index={index}',
                    log=f"supernode-{index}.log",
                )
            )
        submitted = subprocess.run(
            [str(BIN / "flwr"), "run", str(folder / "app"), "here"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert submitted.returncode == 0, submitted.stdout + submitted.stderr
        until(lambda: len(attempts(2)) > made.local.steps, 500, "round 2")
        os.killpg(nodes[2].pid, signal.SIGKILL)
        until(lambda: len(read_rounds(folder)) == 3, 500, "the last round")
    finally:
        for process in started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
        time.sleep(1)
        for process in started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)

    assert [r["replied"] for r in read_rounds(folder)] == [[0, 1, 2], [0, 1], [0, 1]]
    found = claim_of(folder)
    assert {i: found.steps[i] for i in (0, 1)} == {0: 90, 1: 90}
    assert 30 < found.steps[2] < 60  # the interrupted round's steps stay charged
    assert found.guarantee == made.guarantee()


def _listens(port):
    with socket.socket() as trying:
        return trying.connect_ex(("127.0.0.1", port)) == 0
