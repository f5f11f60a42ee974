"""What people type wrong is answered: with an exit status, and what is wrong and the way out."""

import json
import shlex
import shutil
import tomllib
from pathlib import Path

import pytest

from tests.claims.lives import SHAPE
from userdp.cli.app import run

SAID = tomllib.loads(Path(__file__).with_name("mistakes.toml").read_text())
MISTAKES, FILES = SAID["mistake"], SAID["files"]
SHORT = {
    "BUDGET": "--epsilon 4 --population 2000",
    "SILOS": "--silos 2 --items-per-silo 40 --subjects-per-silo 10",
    "TOY": f"--set learning.model=new {' '.join(SHAPE)}",
}


@pytest.fixture(scope="module")
def place(world, tmp_path_factory) -> Path:
    """The world, and files: one folder for all mistakes, since a mistake changes nothing."""
    folder = shutil.copytree(world, tmp_path_factory.mktemp("mistakes") / "place")
    for name, text in FILES.items():
        (folder / name).write_text(text)
    for name in ("damaged", "cut"):
        shutil.copytree(folder / "store", folder / name)
        tokens = next((folder / name).rglob("train.tokens"))
        text = bytearray(tokens.read_bytes())
        text[len(text) // 2] ^= 1
        tokens.write_bytes(text[:-8] if name == "cut" else text)
    return folder


def contents(place: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(place)): path.read_bytes()
        for path in place.rglob("*")
        if path.is_file()
    }


def line(mistake) -> list[str]:
    words = shlex.split(mistake["command"])
    return [one for word in words for one in SHORT.get(word, word).split()]


def said(capsys) -> str:
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "Traceback" not in printed.err
    assert printed.err.count("error: ") == 1
    return printed.err[printed.err.index("error: ") :]


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake["command"])
def test_a_mistake_is_named_and_changes_nothing(place, monkeypatch, capsys, mistake):
    monkeypatch.chdir(place)
    before = contents(place)
    assert run(line(mistake)) == mistake["status"]
    message = said(capsys)
    for name in mistake["names"]:
        assert name in message
    after = contents(place)
    if mistake.get("looks"):
        looked_at(before, after)
    assert after == before


def looked_at(before: dict[str, bytes], after: dict[str, bytes]) -> None:
    """Who is there was told, and the line that notes it is all that is new; it is taken out."""
    new = after.pop("store/ledger.jsonl").removeprefix(before.pop("store/ledger.jsonl"))
    assert json.loads(new)["kind"] == "look"
    assert after.pop("store/ledger.json") != before.pop("store/ledger.json")


@pytest.mark.parametrize("number", range(0, len(MISTAKES), 20))
def test_with_json_the_error_is_one_object_on_stdout(place, monkeypatch, capsys, number):
    monkeypatch.chdir(place)
    mistake = MISTAKES[number]
    assert run([*line(mistake), "--json"]) == mistake["status"]
    printed = capsys.readouterr()
    told = json.loads(printed.out)
    assert "error:" not in printed.err
    assert told.keys() == {"error", "hint", "status"}
    assert told["status"] == mistake["status"]
    for name in mistake["names"]:
        assert name in f"{told['error']} {told['hint']}"


def test_a_fault_of_the_program_keeps_its_trace(place, monkeypatch, tmp_path):
    """Only what people can mend is told in a sentence."""

    def broken(*arguments, **options):
        raise ZeroDivisionError

    shutil.copytree(place / "store", tmp_path / "store")
    monkeypatch.setattr("userdp.data.user_store.UserStore.open", broken)
    with pytest.raises(ZeroDivisionError) as fault:
        run(["store", "stats", str(tmp_path / "store")])
    assert fault.traceback[-1].name == "broken"
