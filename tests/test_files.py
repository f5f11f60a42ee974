"""Files and folders for the operator alone are closed from their first moment on."""

import os
import stat

import pytest

from tests.modes import made_with, open_to_others
from userdp import files
from userdp.errors import UseError


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("umask", [0o022, 0o000, 0o077])
def test_an_operators_folder_is_never_open(tmp_path, monkeypatch, umask):
    with made_with(umask, monkeypatch):
        files.operator_folder(tmp_path / "above" / "folder")
    assert mode(tmp_path / "above" / "folder") == 0o700


@pytest.mark.parametrize("umask", [0o022, 0o000])
def test_invariant_9_lines_for_the_operator_are_the_operators_from_the_first_on(
    tmp_path, monkeypatch, umask
):
    with made_with(umask, monkeypatch):
        files.append_line(tmp_path / "operator.jsonl", {"loss": 1.0})
    assert mode(tmp_path / "operator.jsonl") == 0o600


def test_an_operators_folder_that_is_there_already_is_closed(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    folder.chmod(0o755)
    files.operator_folder(folder)
    assert mode(folder) == 0o700
    folder.chmod(0o500)
    files.operator_folder(folder)
    assert mode(folder) == 0o500, "nothing is opened that its owner closed"


@pytest.mark.parametrize("umask", [0o022, 0o000])
def test_an_operators_file_is_never_open_whatever_a_killed_process_left(
    tmp_path, monkeypatch, umask
):
    """A file of the same name that others hold open is replaced, not written to."""
    path = tmp_path / "scores"
    path.write_text("left by a killed process")
    path.chmod(0o666)
    with path.open() as reader, made_with(umask, monkeypatch):
        with files.whole_file(path, mode=files.OPERATOR_FILE) as file:
            file.write(b"secret")
            assert {mode(part) for part in tmp_path.iterdir() if part != path} == {0o600}
        assert reader.read() == "left by a killed process"
    assert mode(path) == 0o600
    assert path.read_bytes() == b"secret"
    assert [part.name for part in tmp_path.iterdir()] == ["scores"]


def test_broken_twin_a_folder_that_is_closed_after_it_was_made_is_caught(tmp_path, monkeypatch):
    with made_with(0o022, monkeypatch):
        (tmp_path / "late").mkdir()
        os.chmod(tmp_path / "late", 0o700)  # noqa: PTH101 - what the checker must see through
        files.operator_folder(tmp_path / "right")
    assert open_to_others(tmp_path) == {"late"}


@pytest.mark.parametrize("name", ["ledger.jsonl", "meta.json", "model/model.safetensors"])
def test_nothing_writes_over_what_tells_what_people_paid(tmp_path, name):
    """Of a run or a store only pages and pictures are made anew."""
    (tmp_path / "run" / "model").mkdir(parents=True)
    for file in ("ledger.jsonl", "meta.json", "model/model.safetensors", "report.html"):
        (tmp_path / "run" / file).write_text("kept")
    with pytest.raises(UseError, match="what its people paid"):
        files.require_new(tmp_path / "run" / name, overwrite=True)
    files.require_new(tmp_path / "run" / "report.html", overwrite=True)
    files.require_new(tmp_path / "run" / "new.json", overwrite=False)
