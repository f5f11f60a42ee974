"""Every command, on people whose every word is marked: nothing comes out where it must not."""

from __future__ import annotations

import io
import json
import re
import shlex
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from tests.secrets.conftest import PLAN, Planted, plant
from tests.secrets.outputs import OPERATOR, OPERATORS_SCREEN, OUTPUTS, SCREEN, Output, output_of
from tests.secrets.planted import PEOPLE, Secrets, measured_in, rows
from tests.secrets.scan import findings
from userdp.cli.app import run as userdp
from userdp.cli.command_line import NAMES, command_of

USER, TEXT = PEOPLE[17].id, PEOPLE[17].texts[0]
MODEL = "--model new --set learning.layers=1 --set learning.width=16 --set learning.heads=2"
ACCOUNT = "--sampling users --sampling-probability 0.01 --steps 9 --delta 1e-6"
OWN = "own"
"""The call changes its store or its run, and gets one of its own."""

CALLS: dict[str, tuple[Output, str]] = {
    "prepare INPUT --user author --text message --out store --seq-len 16": (OPERATORS_SCREEN, ""),
    "store stats STORE --json": (OPERATORS_SCREEN, ""),
    f"account {ACCOUNT} --noise-multiplier 1 --json": (SCREEN, ""),
    f"train STORE --out run --plan PLAN {MODEL} --json": (SCREEN, ""),
    "evaluate RUN --store STORE": (OPERATORS_SCREEN, ""),
    "generate RUN --records 2 --max-tokens 4 --out synthetic.jsonl": (SCREEN, ""),
    "report RUN --out public.html --public --summary summary.html --json": (SCREEN, ""),
    "report RUN --out report.html": (SCREEN, ""),
    "export RUN --out shared": (SCREEN, ""),
    "verify RUN --json": (SCREEN, ""),
    "store budget STORE --json": (OPERATORS_SCREEN, ""),
    "store members STORE --user -": (OPERATORS_SCREEN, ""),
    "store forget STORE --user -": (OPERATORS_SCREEN, OWN),
    "store score STORE --out scores.arrow --json": (OPERATORS_SCREEN, "slow"),
    "plan STORE --model bundled --budget 16 --steps 3 --epsilon 4 --population 20000 --norms-out "
    "norms.json --set measure.users=6 --set measure.max_group_size=2 --most-noise 1000 "
    "--json": (OPERATORS_SCREEN, "slow"),
    "tune STORE --out sweep --plan PLAN --tuning non-private --learning-rate 0.001 0.003 "
    + MODEL.replace("--model ", "--set learning.model="): (OPERATORS_SCREEN, "slow"),
    "audit RUN --store STORE --no-repeat": (OPERATORS_SCREEN, "slow"),
    "store settle RUN --json": (SCREEN, f"slow {OWN}"),
}
"""Calls by their line: STORE, RUN, PLAN and INPUT stand for what the tests begin with."""

OTHERS = {"demo", "selftest", "federate", "store dedup"}
"""Commands of public or made-up text, and those whose files their own tests look through."""

_NOTICE = re.compile(r'operator-only|"operator_only": true', re.IGNORECASE)


def test_what_anyone_may_read_holds_nothing_but_a_public_vocabulary():
    held = [one for one in OUTPUTS if one.holds and one.reader != OPERATOR]
    assert [one.name for one in held] == ["`tokenizer.json`, wherever it lies"]


def test_every_command_has_a_row():
    assert {command_of(line.split()) for line in CALLS} | OTHERS == set(NAMES)


def words(line: str, planted: Planted, place: Path) -> list[str]:
    """The line as it is typed, with what it begins from."""
    meant = {
        "STORE": planted.folder / "store",
        "RUN": planted.folder / "run",
        "INPUT": planted.folder / "input",
        "PLAN": place / "given" / "plan.json",
    }
    return [str(meant.get(word, word)) for word in shlex.split(line)]


def files(*folders: Path) -> dict[Path, tuple[int, int]]:
    """Every file, and what changes when it is written."""
    paths = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in paths}


def leaks_in_files(
    before: dict[Path, tuple[int, int]], secrets: Secrets, *folders: Path
) -> list[str]:
    """What new and changed files hold, are called, and let others read, that they must not."""
    found = []
    for folder in folders:
        for path, state in files(folder).items():
            name = path.relative_to(folder).as_posix()
            if before.get(path) == state or name.startswith(("given/", "input/")):
                continue
            found += [f"the name of {name}: {one}" for one in findings(name.encode(), secrets)]
            output = output_of(name)
            if output is None:
                found.append(f"{name}: an output that tests/secrets/outputs.py does not know")
                continue
            held = findings(path.read_bytes(), secrets, allowed=output.holds)
            found += [f"{name}: {one}" for one in held]
            if output.reader == OPERATOR and not _closed(path, folder):
                found.append(f"{name}: others may read it")
    return found


def _closed(path: Path, folder: Path) -> bool:
    """Whether nobody else may read it, by its own mode or that of a folder that it is in."""
    inside = [path, *(parent for parent in path.parents if folder in parent.parents)]
    return any(not stat.S_IMODE(one.stat().st_mode) & 0o077 for one in inside)


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(line, marks=pytest.mark.slow if "slow" in how else [])
        for line, (_, how) in CALLS.items()
    ],
)
def test_what_a_command_says_and_writes(line, planted, tmp_path, monkeypatch, capfd):
    screen, how = CALLS[line]
    place = tmp_path / "place"
    (place / "given").mkdir(parents=True)
    PLAN.save(place / "given" / "plan.json")
    if OWN in how:
        planted = plant(tmp_path / "own", trained="RUN" in line, finished=False)
    monkeypatch.chdir(place)
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{USER}\n"))
    before = files(place, planted.folder)
    capfd.readouterr()
    status = userdp(words(line, planted, place))
    said = "".join(capfd.readouterr())
    assert status == 0, said
    measured = (measured_in(path) for path in place.rglob("operator.jsonl"))
    secrets = replace(planted.secrets, measured=planted.secrets.measured.union(*measured))
    assert findings(said.encode(), secrets, allowed=screen.holds) == []
    if findings(said.encode(), secrets):
        assert _NOTICE.search(said), "exact numbers are printed, and nobody is told so"
    assert leaks_in_files(before, secrets, place, planted.folder) == []


def inputs(folder: Path) -> None:
    """Files that are broken in the ways in which files are."""
    good = [json.dumps(row) for row in rows()[:5]]
    for name, lines in {
        "broken.jsonl": [*good, f'{{"author": "{USER}", "message": "{TEXT}'],
        "types.jsonl": [*good, json.dumps({"author": [1], "message": {TEXT: USER}})],
        "fields.jsonl": [json.dumps({USER: TEXT, "message": TEXT})],
        "headless.csv": [f"{row['author']},{row['message']}" for row in rows()[:5]],
        "no-leaf.json": [f'{{"user_data": {TEXT}'],
        "mail.mbox": [TEXT, f"From {USER}"],
    }.items():
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    (folder / "latin.jsonl").write_bytes("\n".join(good).encode("utf-16"))


MISTAKES = {
    "prepare broken.jsonl --user author --text message --out made": 0,
    "prepare types.jsonl --user author --text message --out made --json": 0,
    "prepare fields.jsonl --user author --text message --out made": 2,
    "prepare headless.csv --user author --text message --out made": 2,
    "prepare latin.jsonl --user author --text message --out made": 2,
    "prepare no-leaf.json --source leaf --out made": 2,
    "prepare mail.mbox --source mbox --out made": 2,
    "store members STORE --user nobody": 2,
}


@pytest.mark.parametrize("line", MISTAKES)
def test_what_is_said_of_a_mistake_quotes_no_text_and_no_id(
    line, planted, tmp_path, monkeypatch, capfd
):
    inputs(tmp_path)
    monkeypatch.chdir(tmp_path)
    capfd.readouterr()
    status = userdp(words(line, planted, tmp_path))
    said = "".join(capfd.readouterr())
    assert status == MISTAKES[line], said
    assert findings(said.encode(), planted.secrets) == []
