"""Files and folders for the operator alone are closed from their first moment on."""

import json
import os
import stat
from functools import partial

import pytest

from tests.modes import made_with, open_to_others
from userdp.commands.arguments import require_new
from userdp.core import files
from userdp.core.errors import UseError


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("umask", [0o022, 0o000, 0o077])
def test_invariant_9_what_is_the_operators_is_theirs_from_the_first_on(
    tmp_path, monkeypatch, umask
):
    with made_with(umask, monkeypatch):
        files.operator_folder(tmp_path / "above" / "folder")
        files.append_line(tmp_path / "operator.jsonl", {"loss": 1.0})
    assert mode(tmp_path / "above" / "folder") == 0o700
    assert mode(tmp_path / "operator.jsonl") == 0o600


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
            assert {mode(part) for part in tmp_path.rglob("*") if part != path} == {0o700, 0o600}
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
        require_new(tmp_path / "run" / name, overwrite=True, name="plan.json")
    require_new(tmp_path / "run" / "report.html", overwrite=True, name="report.html")
    require_new(tmp_path / "run" / "new.json", overwrite=False, name="new.json")


def test_what_a_killed_process_left_goes_when_the_same_is_written_again(tmp_path):
    """Half of a file that was to become it; one of another name is another's."""
    path, other = tmp_path / "plan.json", ".partial-plan.json-other-0123abcd"
    for name in (".partial-plan.json-0123abcd", other):
        (tmp_path / name).mkdir()
        (tmp_path / name / "plan.json").write_text("half")
    files.write_file(path, b"whole")
    assert {one.name for one in tmp_path.iterdir()} == {"plan.json", other}
    path.unlink()
    with files.whole_folder(path) as folder:
        (folder / "inside").write_text("whole")
    files.sweep(tmp_path)
    assert [one.name for one in tmp_path.rglob("*")] == ["plan.json", "inside"]


def test_what_a_living_process_writes_stays(tmp_path):
    """Two writers of one file: the later one wins, and neither takes the other's half away."""
    path = tmp_path / "ledger.json"
    with files.whole_file(path) as slow:
        slow.write(b"slow")
        files.write_file(path, b"quick")
        files.sweep(tmp_path)
        assert path.read_bytes() == b"quick"
    assert path.read_bytes() == b"slow"
    with files.whole_folder(tmp_path / "export") as folder:
        files.sweep(tmp_path)
        (folder / "inside").write_text("whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["export", "ledger.json"]


def test_broken_twin_a_sweep_that_asks_for_no_lock_takes_it_away(tmp_path, monkeypatch):
    monkeypatch.setattr(files.fcntl, "flock", lambda descriptor, how: None)
    with pytest.raises(FileNotFoundError), files.whole_file(tmp_path / "ledger.json"):
        files.sweep(tmp_path)


def test_a_line_after_one_that_a_crash_cut_short_is_whole(tmp_path):
    path = tmp_path / "operator.jsonl"
    files.append_line(path, {"n": 1})
    with path.open("ab") as file:
        file.write(b'{"n": 2, "text')
    files.append_line(path, {"n": 3})
    assert [json.loads(line)["n"] for line in path.read_text().splitlines()] == [1, 3]


@pytest.mark.parametrize("folder", [False, True], ids=["a new file", "a folder"])
def test_a_second_holder_of_a_lock_is_refused(tmp_path, folder):
    path = tmp_path if folder else tmp_path / ".lock"
    held = partial(files.exclusive, path, refusal=UseError("in use"))
    with held(), pytest.raises(UseError, match="in use"), held():
        pass
    with held():
        pass
