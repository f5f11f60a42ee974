"""Every command, on people whose every word is marked: nothing comes out where it must not."""

from __future__ import annotations

import io
import re
import shlex
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from tests.secrets.commands import CALLS, Call
from tests.secrets.conftest import PLAN, Planted, plant
from tests.secrets.outputs import ERRORS, OPERATOR, PROCESSES, Output, output_of
from tests.secrets.planted import Secrets, measured_in
from tests.secrets.scan import findings
from tests.secrets.watch import Said, listen
from userdp.cli.app import run as userdp
from userdp.cli.commands import command_of, names
from userdp.training.config import TrainConfig
from userdp.training.probe import probe_store

EVERY = [
    pytest.param(call, id=call.line, marks=[pytest.mark.slow] if call.slow else [])
    for calls in CALLS.values()
    for call in calls
]
_NOTICE = re.compile(r'operator-only|"operator_only": true', re.IGNORECASE)


def test_every_command_has_a_row():
    assert set(CALLS) == set(names())
    for name, calls in CALLS.items():
        assert {command_of(call.line.split()) for call in calls} <= {name}


def words(call: Call, planted: Planted, place: Path) -> list[str]:
    """The line as it is typed, with what it begins from."""
    meant = {
        "STORE": planted.folder / "store",
        "RUN": planted.folder / "run",
        "INPUT": planted.folder / "input",
        "PLAN": place / "given" / "plan.json",
        "NORMS": planted.folder / "norms.json",
        "PUBLIC": place / "given" / "public.jsonl",
    }
    typed = []
    for word in shlex.split(call.line):
        head, equals, tail = word.rpartition("=")  # as --store NAME=STORE
        typed.append(f"{head}{equals}{meant.get(tail, tail)}")
    return typed


def files(*folders: Path) -> dict[Path, tuple[int, int]]:
    """Every file, and what changes when it is written."""
    found = {}
    for folder in folders:
        for path in folder.rglob("*"):
            if path.is_file():
                status = path.stat()
                found[path] = (status.st_mtime_ns, status.st_size)
    return found


def leaks(said: Said, screen: Output, secrets: Secrets) -> list[str]:
    """What a call said that it must not, by the channel."""
    found = []
    for channel, data in said.channels.items():
        kind = {"processes": PROCESSES, "names of files": PROCESSES}.get(channel, ERRORS)
        if channel in ("stdout", "stderr"):
            kind = screen
        found += [f"{channel}: {one}" for one in findings(data, secrets, allowed=kind.holds)]
    return found


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
    while path != folder:
        if not stat.S_IMODE(path.stat().st_mode) & 0o077:
            return True
        path = path.parent
    return False


@pytest.mark.parametrize("call", EVERY)
def test_what_a_command_says_and_writes(call, planted, tmp_path, monkeypatch, capfd):
    place = tmp_path / "place"
    (place / "given").mkdir(parents=True)
    PLAN.save(place / "given" / "plan.json")
    (place / "given" / "public.jsonl").write_text('{"text": "what everybody may read"}\n')
    if call.own:
        planted = plant(tmp_path / "own", trained="RUN" in call.line, finished=False)
    if "NORMS" in call.line:
        norms = planted.folder / "norms.json"
        config = TrainConfig(model="bundled")
        probe_store(planted.store, config, users=6, max_group_size=2).save(norms)
    monkeypatch.chdir(place)
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{call.typed}\n"))
    before = files(place, planted.folder)
    line = words(call, planted, place)
    said = listen(lambda: userdp(line), capfd, tmp_path / "temporary")
    assert said.error is None
    assert said.status == 0, said.channels["stderr"].decode()
    secrets = planted.secrets
    measured = secrets.measured.union(
        *(measured_in(path) for path in place.rglob("operator.jsonl"))
    )
    secrets = replace(secrets, measured=measured)
    assert leaks(said, call.screen, secrets) == []
    printed = (said.channels["stdout"] + said.channels["stderr"]).decode()
    if findings(printed.encode(), secrets):
        assert _NOTICE.search(printed), "exact numbers are printed, and nobody is told so"
    assert leaks_in_files(before, secrets, place, planted.folder) == []
