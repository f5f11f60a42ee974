import errno
import json
import os
import subprocess
import sys

import pytest

from tests.speed import fast_then_slow
from userdp.cli.output import show_answer

PRICE = "--sampling-probability 0.1 --steps 3 --noise-multiplier 1 --delta 1e-5"


def test_flags_override_the_config_file(userdp, tmp_path):
    config = tmp_path / "userdp.toml"
    config.write_text(  # with the byte-order mark that some editors write
        "\ufeff[account]\ngroup-size = 2\nsteps = 10\ndelta = 1e-6\nnoise_multiplier = 1.0\n"
        'population = 9\n[account.sampling]\nkind = "fixed-batch"\nbatch_size = 3\n'
    )
    status, out, _ = userdp("account", "--config", config, "--noise-multiplier", "2", "--json")
    told = json.loads(out)
    assert status == 0
    assert (told["noise_multiplier"], told["steps"], told["batch_size"]) == (2.0, 10, 3)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS])
def test_a_disk_that_refuses_is_no_fault_of_the_program(userdp, monkeypatch, number):
    def refuse(*whatever, **options):
        raise OSError(number, os.strerror(number), "a store")

    monkeypatch.setattr("userdp.data.user_store.UserStore.open", refuse)
    status, out, said = userdp("store", "stats", "a store")
    assert (status, out) == (1, "")
    assert said.startswith(f"error: the machine refused: {os.strerror(number)} (a store)")
    assert "free some space" in said


@pytest.mark.parametrize("unbuffered", fast_then_slow(["", "1"]))
@pytest.mark.parametrize(
    "line", [("account", "--json", *PRICE.split()), ("account", *PRICE.split()), ("--help",)]
)
@pytest.mark.parametrize("place", fast_then_slow(["full", "closed"]))
def test_output_that_nobody_takes_ends_in_no_traceback(place, line, unbuffered):
    """As of ``userdp … | head`` and ``userdp … > /dev/full``."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "userdp", *line],
        stdout=writer if place == "closed" else os.open("/dev/full", os.O_WRONLY),
        stderr=subprocess.PIPE, text=True, check=False,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert not {"Traceback", "Exception"} & {*done.stderr.split()}


def test_a_terminal_obeys_no_text_and_no_path_is_cut(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "20")
    show_answer({"in": f"{'a-/' * 10} \x1b[31m"}, "members", json=False)
    assert capsys.readouterr().out == f"in\n{'a-/' * 10}\n\ufffd[31m\n"
