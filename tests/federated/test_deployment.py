"""A real deployment on loopback: SuperLink, three SuperNodes, TLS, key pairs, one killed."""

import datetime
import ipaddress
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="the extra `federated` is not installed")

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.federated.plans import NUMBERS, plan
from tests.federated.toys import images
from userdp.federated.flower import write_app
from userdp.federated.rounds import read_rounds
from userdp.federated.silo import silo_folder
from userdp.federated.simulation import claim_of, make_federation
from userdp.ledger.journal import read_entries

BIN = Path(sys.executable).parent
PEM = serialization.Encoding.PEM


def certificates(folder):
    """A certificate authority, and a server's certificate for 127.0.0.1."""

    def name(text):
        return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])

    def sign(subject, key, issuer, by, *, authority):
        now = datetime.datetime.now(datetime.UTC)
        made = (
            x509.CertificateBuilder()
            .subject_name(name(subject))
            .issuer_name(name(issuer))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=2))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(
                x509.SubjectAlternativeName(
                    [
                        x509.DNSName("localhost"),
                        x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
                    ]
                ),
                critical=False,
            )
        )
        return made.sign(by, hashes.SHA256())

    root, key = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    ca = sign("a test's authority", root, "a test's authority", root, authority=True)
    server = sign("localhost", key, "a test's authority", root, authority=False)
    (folder / "ca.crt").write_bytes(ca.public_bytes(PEM))
    (folder / "server.pem").write_bytes(server.public_bytes(PEM))
    (folder / "server.key").write_bytes(
        key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )


def key_pair(path):
    """A silo's key pair, as ``ssh-keygen -t ecdsa -b 384`` makes it."""
    key = ec.generate_private_key(ec.SECP384R1())
    path.write_bytes(
        key.private_bytes(PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption())
    )
    path.with_suffix(".pub").write_bytes(
        key.public_key().public_bytes(
            serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        )
    )


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
def test_three_silos_with_tls_and_key_pairs_go_on_when_one_is_killed_in_a_round(
    tmp_path, monkeypatch
):
    made = plan(8.0, rounds=3, local_steps=30, sampling_probability=0.5)
    folder = tmp_path / "federation"
    make_federation(folder, made, images(40), tokenizer=NUMBERS)
    write_app(folder, round_timeout=120, wait_timeout=400)

    certificates(tmp_path)
    port = free_port()
    home = tmp_path / "home"
    home.mkdir()
    (home / "config.toml").write_text(
        f'[superlink.here]\naddress = "127.0.0.1:{port}"\n'
        f'root-certificates = "{tmp_path / "ca.crt"}"\n'
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

    tls = ("--ssl-ca-certfile", tmp_path / "ca.crt", "--ssl-certfile", tmp_path / "server.pem")
    tls += ("--ssl-keyfile", tmp_path / "server.key")
    try:
        start(
            *("flower-superlink", *tls, "--enable-supernode-auth"),
            *("--disable-runtime-dependency-installation", "--port", port),
            log="superlink.log",
        )
        until(lambda: _listens(port), 180, "the SuperLink")
        nodes = []
        for index in range(3):
            key = tmp_path / f"silo-{index}"
            key_pair(key)
            registered = subprocess.run(
                [str(BIN / "flwr"), "supernode", "register", str(key) + ".pub", "here"],
                capture_output=True,
                text=True,
                check=False,
            )
            assert registered.returncode == 0, registered.stdout + registered.stderr
            nodes.append(
                start(
                    *("flower-supernode", "--superlink", f"127.0.0.1:{port}"),
                    *("--root-certificates", tmp_path / "ca.crt", *tls, "--port", free_port()),
                    *("--auth-supernode-private-key", key, "--node-config"),
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
