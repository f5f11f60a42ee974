"""The list of planted faults fits the source, and the runner tells a kill from a survivor."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmarks.faults.planted import (
    PACKAGE,
    ROOT,
    Fault,
    digest_of_source,
    read_faults,
)
from benchmarks.faults.table import BEGIN, END, section, summary, write_section
from benchmarks.faults.verdicts import Verdict

FAULTS = read_faults()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_fits_the_source_and_names_tests_that_exist(fault: Fault) -> None:
    source = (ROOT / "src" / PACKAGE / fault.file).read_text("utf-8")
    assert fault.planted(source) != source  # raises unless the old text is there exactly once
    assert fault.tests
    for test in fault.tests:
        path, _, name = test.partition("::")
        assert (ROOT / path).is_file()
        assert f"def {name}" in (ROOT / path).read_text("utf-8") if name else True


def test_there_are_sixty_faults_of_all_invariants_and_twenty_of_them_are_blind() -> None:
    names = Counter(fault.name for fault in FAULTS)
    assert max(names.values()) == 1
    assert len(names) >= 60
    assert sum(fault.blind for fault in FAULTS) >= 20
    assert {fault.invariant for fault in FAULTS} == set(range(1, 15))


@pytest.mark.parametrize("source", ["nothing", "if x:\nif x:\n"], ids=["missing", "twice"])
def test_a_fault_that_does_not_fit_is_refused(source: str) -> None:
    with pytest.raises(ValueError, match="occurs"):
        of(old="if x:\n", new="if y:\n").planted(source)


def test_a_fault_that_is_no_python_is_refused() -> None:
    with pytest.raises(ValueError, match="no Python"):
        of(old="x", new="(").planted("x = 1")


def test_a_verdict_is_of_the_source_the_fault_and_its_tests(tmp_path: Path) -> None:
    module = tmp_path / PACKAGE / "one.py"
    module.parent.mkdir()
    module.write_text("x = 1\n")
    fault = of(old="x", new="y", tests=("tests/test_vocabulary.py",))
    source = digest_of_source(tmp_path)
    before = fault.digest(source)
    assert fault.digest(digest_of_source(tmp_path)) == before
    others = [dataclasses.replace(fault, new="z"), dataclasses.replace(fault, tests=("README.md",))]
    assert before not in [other.digest(source) for other in others]
    module.write_text("x = 2\n")
    assert fault.digest(digest_of_source(tmp_path)) != before


def test_the_page_keeps_what_other_commands_wrote(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    fault = of(old="x", new="y")
    row = {
        "verdict": "killed",
        "test": "tests/a.py::test_invariant_8_x[1]",
        "why": "",
        "seconds": 1,
    }
    write_section(page, section([fault], {}, date="2026-01-01", cores=2))
    assert "*not tried*" in page.read_text()
    page.write_text(page.read_text() + "\n## Another\n")
    write_section(page, section([fault], {"one": row}, date="2026-01-02", cores=2))
    text = page.read_text()
    assert "## Another" in text
    assert "`test_invariant_8_x`" in text
    assert "not tried" not in text
    assert text.count(BEGIN) == text.count(END) == 1


def test_only_kills_are_counted() -> None:
    faults = [of(name="one", blind=True), of(name="two")]
    rows = {"one": {"verdict": "survived"}, "two": {"verdict": "killed"}}
    assert summary(faults, rows) == "1 of 2 faults killed; of the 1 blind ones 0"
    del rows["one"]
    assert summary(faults, rows) == "1 of 2 faults killed; of the 1 blind ones 0; 1 not tried yet"


ROUND_UP = "return str(Decimal(epsilon).quantize(step, rounding=ROUND_CEILING))"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "verdict", "ran_into_it"),
    [
        ({"new": "return str(Decimal(epsilon).quantize(step))"}, Verdict.KILLED, True),
        ({"new": f"return str({ROUND_UP.removeprefix('return ')})"}, Verdict.SURVIVED, False),
        ({"new": "return str(nobody)"}, Verdict.ERROR, True),
        ({"new": "import nobody"}, Verdict.ERROR, True),
        ({"new": f"{ROUND_UP}  # the same", "invariant": 99}, Verdict.ERROR, False),
        ({"old": "from enum import StrEnum\n", "new": "import nobody\n"}, Verdict.ERROR, False),
    ],
    ids=["fault", "harmless", "undefined", "import", "no test", "not collected"],
)
def test_the_runner_tells_a_kill_from_all_else(tmp_path, changes, verdict, ran_into_it) -> None:
    fault = of(**{"old": ROUND_UP, **changes})
    trial = tried(tmp_path, fault)
    assert trial["verdict"] == verdict
    assert (trial["test"] is not None) == ran_into_it
    copy = tmp_path / "src" / PACKAGE / fault.file
    assert copy.read_bytes() == (ROOT / "src" / PACKAGE / fault.file).read_bytes()


@pytest.mark.slow
def test_a_test_that_fails_without_the_fault_too_is_no_kill(tmp_path) -> None:
    fault = of(old=ROUND_UP, new=f"{ROUND_UP}  # the same")
    trial = tried(tmp_path, fault, also=("not 0 < value < 1:", "value < 0:"))
    assert trial["verdict"] == Verdict.ERROR
    assert trial["why"] == "the test fails without the fault too"


@pytest.mark.slow
def test_a_fault_by_which_a_test_does_not_end_is_no_kill(tmp_path) -> None:
    assert tried(tmp_path, of(old=ROUND_UP, new="while True: pass"))["verdict"] == Verdict.ERROR


_TRY = """
import json, sys
from dataclasses import asdict
from pathlib import Path
from benchmarks.faults.planted import PACKAGE, forget_compiled, read_faults
from benchmarks.faults.verdicts import Trials

folder, also = Path(sys.argv[1]), json.loads(sys.argv[2])
listed = folder / "planted.toml"
(fault,) = read_faults(listed)
trials = Trials(folder, listed=listed, patience=20)
if also:
    path = folder / "src" / PACKAGE / fault.file
    path.write_text(path.read_text().replace(*also))
    forget_compiled(path)
print(json.dumps(asdict(trials.try_(fault))))
"""


def tried(folder: Path, fault: Fault, *, also: tuple[str, str] | None = None) -> dict[str, Any]:
    """A trial in a process of its own, since here the package is imported already.

    Args:
        folder: empty.
        fault: is planted in a copy there.
        also: old and new words of a second fault, which stays in the copy.
    """
    written(folder, fault)
    command = [sys.executable, "-c", _TRY, str(folder), json.dumps(also)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


def of(**changes: object) -> Fault:
    """A fault of one module, which its tests import without torch."""
    values = {
        "name": "one",
        "invariant": 8,
        "what": "Something is wrong.",
        "file": "vocabulary.py",
        "old": "x",
        "new": "y",
        "tests": ("tests/test_vocabulary.py",),
        **changes,
    }
    return Fault(**values)


def written(folder: Path, fault: Fault) -> Path:
    """A list of this one fault, for the plugin within pytest."""
    path = folder / "planted.toml"
    values = {key: value for key, value in dataclasses.asdict(fault).items() if value != ()}
    lines = [f"{key} = {json.dumps(value)}" for key, value in values.items()]
    path.write_text("\n".join(["[[fault]]", *lines, ""]))
    return path
