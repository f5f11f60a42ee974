import errno
import json
import os

import pytest

from tests.ledgers import reserve
from userdp.cli.app import run
from userdp.ledger import StoreLedger

MECHANISM = ["--sampling-probability", "0.01", "--steps", "10", "--delta", "1e-6"]
ULS = ["--sampling", "users", *MECHANISM, "--noise-multiplier", "1"]


def userdp(capsys, *arguments):
    status = run(arguments)
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_infinite_epsilon_is_valid_json(capsys, tmp_path):
    reserve(StoreLedger(tmp_path), "open", None)
    status, out, _ = userdp(capsys, "account", "--ledger", str(tmp_path), "--json")
    assert status == 0
    assert json.loads(out)["epsilon"] == "inf"


def test_flags_override_the_config_file(capsys, tmp_path):
    config = tmp_path / "userdp.toml"
    config.write_text(  # with the byte-order mark that some editors write
        '\ufeff[account]\nsampling = "users"\nsampling_probability = 0.01\nsteps = 10\n'
        "delta = 1e-6\nnoise_multiplier = 1.0\n"
    )
    status, out, _ = userdp(
        capsys, "account", "--config", str(config), "--noise-multiplier", "2", "--json"
    )
    assert status == 0
    result = json.loads(out)
    assert result["noise_multiplier"] == 2.0
    assert result["steps"] == 10


@pytest.mark.parametrize(
    ("number", "way_out"),
    [(errno.ENOSPC, "free some space"), (errno.EIO, "check it"), (errno.EROFS, "another place")],
)
def test_a_disk_that_refuses_is_no_fault_of_the_program(capsys, monkeypatch, number, way_out):
    def refuse(*whatever, **options):
        raise OSError(number, os.strerror(number), "a store")

    monkeypatch.setattr("userdp.data.store.UserStore.open", refuse)
    status, out, said = userdp(capsys, "store", "stats", "a store")
    assert (status, out) == (1, "")
    assert said.startswith(f"error: the machine refused: {os.strerror(number)} (a store)")
    assert way_out in said
