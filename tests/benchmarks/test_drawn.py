"""The draw of mutants: what can be drawn, what is left out, and what counts as noticed."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.faults.drawn.covering import Map, digest_of_file
from benchmarks.faults.drawn.draw import PARTS, drawn
from benchmarks.faults.drawn.operators import CallLeftOut, ExtremeExchanged
from benchmarks.faults.drawn.positions import Mutant, mutant, places, tuning
from benchmarks.faults.drawn.selector import TESTS, name_of
from benchmarks.faults.drawn.survivors import Kind, Reason, read_survivors
from benchmarks.faults.drawn.table import interval, section, summary
from benchmarks.faults.drawn.trials import Verdict, digest_of_test
from benchmarks.faults.forks import REPORT
from benchmarks.faults.planted import PACKAGE, ROOT, digest_of_text

cosmic_ray = pytest.importorskip("cosmic_ray.mutating")


def changes(source: str, *, file: str = "clip.py") -> set[str]:
    """What the mutants of ``source`` put in the place of its lines."""
    found = places(file, source)
    made = (mutant(place, way, source) for place in found for way in range(len(place.ways)))
    return {one.new for one in made if one is not None}


def test_a_comparison_a_number_a_call_and_an_extreme_can_be_changed() -> None:
    source = "def f(x):\n    check(x)\n    if x < 3:\n        return min(x, 1)\n    return x\n"
    new = changes(source)
    assert "pass" in new
    assert "if x <= 3:" in new
    assert "if x < 4:" in new
    assert "return max(x, 1)" in new


@pytest.mark.parametrize(
    "source",
    [
        "def f(x: int | None = None) -> int | None:\n    return x\n",
        "x: int | None = None\n",
        "if TYPE_CHECKING:\n    from a import b\n",
        "def f():\n    raise ValueError(f'{1 + 2} is not {3}')\n",
        "@cache\ndef f():\n    return None\n",
        "def f(a, *, b):\n    return None\n",
    ],
    ids=["annotations", "annotation", "types only", "words of an error", "cache", "star"],
)
def test_what_means_nothing_has_no_mutant(source: str) -> None:
    assert changes(source) == set()


def test_a_decorator_can_go_and_its_options_stay() -> None:
    source = "@dataclass(frozen=True, order=False)\nclass A:\n    x = None\n"
    assert changes(source) == {""}


def test_a_constant_that_only_tunes_has_no_mutant_and_another_one_has() -> None:
    source = "_BLOCK = 1 << 20\n\ndef f():\n    _BLOCK = 2\n"
    assert changes(source, file="claims/copies.py") == {"_BLOCK = 1", "_BLOCK = 3"}
    assert "_BLOCK = 0 << 20" in changes(source)


def defined(file: str, *kinds: type[ast.AST]) -> set[str]:
    """Names that the statements of these kinds define at the top of a module."""
    tree = ast.parse((ROOT / "src" / PACKAGE / file).read_text("utf-8"))
    nodes = [node for node in tree.body if isinstance(node, kinds)]
    inner = {one for node in nodes for one in ast.walk(node) if isinstance(one, ast.Name)}
    names = {one.id for one in inner if isinstance(one.ctx, ast.Store)}
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
            names |= {f"{node.name}.{one.name}" for one in node.body if hasattr(one, "name")}
    return names


def test_whatever_is_left_out_by_name_exists_and_has_a_reason() -> None:
    for (file, name), why in tuning("constants").items():
        assert name in defined(file, ast.Assign, ast.AnnAssign), f"{file} defines no {name}"
        assert why
    holders = (ast.FunctionDef, ast.ClassDef)
    for (file, name), why in tuning("steering").items():
        assert not name or name in defined(file, *holders), f"{file} defines no {name}"
        assert why


def test_a_function_that_only_steers_has_no_mutant() -> None:
    source = "def _reach(x):\n    return x + 1\n\ndef other(x):\n    return x + 2\n"
    new = changes(source, file="accounting/contour/plan.py")
    assert "return x + 3" in new
    assert "return x + 0" not in new


@pytest.mark.parametrize("operator", [CallLeftOut, ExtremeExchanged])
def test_an_operator_of_our_own_does_what_its_example_says(operator) -> None:
    for example in operator.examples():
        made = cosmic_ray.mutate_code(example.pre_mutation_code, operator(), example.occurrence)
        assert made == example.post_mutation_code


def test_a_mutant_keeps_its_name_while_its_function_and_lines_stay() -> None:
    source = "def f(x):\n    return x < 3\n"
    (one, *_) = [mutant(place, 0, source) for place in places("clip.py", source)]
    longer = f"import math\n\n{source}"
    (other, *_) = [mutant(place, 0, longer) for place in places("clip.py", longer)]
    assert one is not None
    assert other is not None
    assert one.name == other.name
    assert one.lines != other.lines


@pytest.mark.slow
def test_the_seed_draws_six_hundred_mutants_and_each_is_python() -> None:
    mutants = [one for part in drawn().values() for one in part]
    assert len({one.name for one in mutants}) == sum(part.count for part in PARTS) == 600
    for one in mutants:
        source = (ROOT / "src" / PACKAGE / one.file).read_text("utf-8")
        assert ast.dump(ast.parse(one.planted(source))) != ast.dump(ast.parse(source))


def test_a_draw_moves_only_with_what_changed(tmp_path: Path) -> None:
    def package(folder: Path, more: str) -> Path:
        for part in PARTS:
            for path in part.paths:
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).write_text("") if path.endswith(".py") else (folder / path).mkdir()
        functions = [f"def f{n}(x):\n    return x < {n}\n" for n in range(30)]
        (folder / "clip.py").write_text("".join(functions) + more)
        return folder

    changed = package(tmp_path / "b", "def g(x):\n    return x + 1\n")
    before = {one.name for one in drawn(package(tmp_path / "a", ""))["clip"]}
    after = {one.name for one in drawn(changed)["clip"]}
    assert len(before) == 40
    assert len(before - after) <= 4  # those that the new function's own places push out


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A map of clip.py, of which a cheap test, a costly one and one that failed run line 5."""
    path = f"/elsewhere/src/{PACKAGE}/clip.py"
    text = (ROOT / "src" / PACKAGE / "clip.py").read_text("utf-8")
    names = ["tests/cli/test_a.py::x", "tests/test_clip.py::y", "tests/test_clip.py::failed"]
    names += ["tests/test_clip.py::beside"]
    seconds = [1.0, 1.25, 1.0, 2.0]
    part = {
        "tests": {
            name: {"seconds": cost, "passed": not name.endswith("failed"), "fixtures": []}
            for name, cost in zip(names, seconds, strict=True)
        },
        "lines": {path: {"5": [0, 1, 2]}},
        "digests": {path: digest_of_text(text)},
        "fixtures": {"fixture a": 30.0},
        "files": {},
    }
    for name in names:
        file = tmp_path / name.partition("::")[0]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")
        part["files"][name.partition("::")[0]] = digest_of_text("")
    (tmp_path / "part.json").write_text(json.dumps(part))
    return tmp_path


def of(**values: object) -> Mutant:
    known = {"file": "clip.py", "function": "", "operator": "AddNot", "block": 0, "occurrence": 0}
    return Mutant(**{**known, "lines": (5, 5), "old": "x", "new": "y", **values})


def test_tests_of_the_modules_own_come_first_and_failed_ones_never(folder: Path) -> None:
    chosen = Map(folder, folder).chosen(of(), limit=100)
    own, beside = "tests/test_clip.py::y", "tests/test_clip.py::beside"
    assert chosen.tests == (own, "tests/cli/test_a.py::x", beside)
    assert Map(folder, folder).chosen(of(), limit=3).tests == (own, "tests/cli/test_a.py::x")


def test_what_runs_at_import_is_run_by_every_test_of_the_module(folder: Path) -> None:
    """Whichever test imported it first: the others rest on it too."""
    part = json.loads((folder / "part.json").read_text())
    path = next(iter(part["lines"]))
    text = (ROOT / "src" / PACKAGE / "clip.py").read_text("utf-8")
    rows = text.splitlines()
    (deferred,) = (n for n, row in enumerate(rows, 1) if row.endswith("self is ClipForm.AUTOMATIC"))
    imported = next(number for number, row in enumerate(rows, 1) if row == "    @property")
    part["lines"][path] = {str(imported): [0], str(deferred): [0], "5": [1]}
    (folder / "part.json").write_text(json.dumps(part))
    first, other = "tests/cli/test_a.py::x", "tests/test_clip.py::y"
    chosen = Map(folder, folder).chosen(of(lines=(imported, imported)), limit=2.5)
    assert set(chosen.tests) == {first, other}
    assert Map(folder, folder).chosen(of(lines=(deferred, deferred)), limit=2.5).tests == (first,)


def test_a_shared_fixture_is_paid_for_once_and_by_whoever_comes_first(folder: Path) -> None:
    part = json.loads((folder / "part.json").read_text())
    own, other = "tests/test_clip.py::y", "tests/cli/test_a.py::x"
    part["tests"][own]["fixtures"] = ["fixture a"]
    (folder / "part.json").write_text(json.dumps(part))
    assert Map(folder, folder).chosen(of(), limit=100).tests[:2] == (other, own)
    part["tests"][other]["fixtures"] = ["fixture a"]
    (folder / "part.json").write_text(json.dumps(part))
    chosen = Map(folder, folder).chosen(of(), limit=100)
    assert chosen.seconds == pytest.approx(30 + 1.25 + 1 + 2, abs=0.1)


def test_a_module_that_changed_since_the_map_was_made_is_run_by_all_its_tests(folder: Path) -> None:
    assert Map(folder, folder).running("clip.py", [6]) == set()
    part = json.loads((folder / "part.json").read_text())
    part["digests"] = dict.fromkeys(part["digests"], "another")
    (folder / "part.json").write_text(json.dumps(part))
    every = {"tests/cli/test_a.py::x", "tests/test_clip.py::y"}
    assert Map(folder, folder).running("clip.py", [6]) == every


def test_a_module_that_is_newer_than_the_map_is_run_by_the_tests_of_its_part(folder: Path) -> None:
    file = "gradients/noise.py"
    assert not Map(folder, folder).chosen(of(file=file), limit=100).covered
    part = json.loads((folder / "part.json").read_text())
    test = "tests/gradients/test_a.py::x"
    part["tests"][test] = {"seconds": 1.0, "passed": True, "fixtures": []}
    part["files"]["tests/gradients/test_a.py"] = digest_of_text("")
    (folder / "tests" / "gradients").mkdir()
    (folder / "tests" / "gradients" / "test_a.py").write_text("")
    (folder / "part.json").write_text(json.dumps(part))
    digest_of_file.cache_clear()
    assert Map(folder, folder).chosen(of(file=file), limit=9).tests == (test,)


def test_a_file_of_tests_that_changed_is_not_in_the_map_and_the_last_record_counts(folder):
    last = json.loads((folder / "part.json").read_text())
    last["tests"]["tests/test_clip.py::y"]["seconds"] = 7.0
    (folder / "part-1.json").write_text(json.dumps(last))
    assert Map(folder, folder).seconds["tests/test_clip.py::y"] == 7.0
    (folder / "tests" / "cli" / "test_a.py").write_text("x = 1")
    digest_of_file.cache_clear()
    assert Map(folder, folder).files == {"tests/test_clip.py"}


def test_without_a_map_nothing_is_tried(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"drawn\.covering"):
        Map(tmp_path).chosen(of(), limit=1)


def test_a_kill_counts_while_its_test_is_what_it_was() -> None:
    here = "tests/benchmarks/test_drawn.py"
    assert digest_of_test(f"{here}::test_without_a_map_nothing_is_tried") != "gone"
    assert digest_of_test(f"{here}::test_nobody_wrote") == "gone"
    assert digest_of_test("tests/nowhere.py::test_x") == "gone"


def test_a_doctest_of_a_copy_is_the_sources_own() -> None:
    copied, own = Path(f"/tmp/x/src/{PACKAGE}/clip.py"), ROOT / "tests" / "test_clip.py"
    assert name_of("::y", copied) == f"src/{PACKAGE}/clip.py::y"
    assert name_of("tests/test_clip.py::y[/a]", own) == "tests/test_clip.py::y[/a]"


def test_a_doctest_of_a_copy_is_run(tmp_path: Path) -> None:
    """pytest itself decides how it names a file outside of its root."""
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    copied = tmp_path / "src" / PACKAGE / "sampling" / "poisson.py"
    copied.write_text(copied.read_text("utf-8").replace("else min(1.0,", "else -min(1.0,"))
    test = f"src/{PACKAGE}/sampling/poisson.py::"
    test += f"{PACKAGE}.sampling.poisson.subject_probability"
    listed, report = tmp_path / "tests.json", tmp_path / "report.json"
    listed.write_text(json.dumps([test]))
    root = ("-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT))
    plugin = ("-p", "no:cacheprovider", "-p", "benchmarks.faults.drawn.selector")
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *root, *plugin, str(copied)],
        cwd=ROOT,
        env={
            **os.environ,
            TESTS: str(listed),
            REPORT: str(report),
            "PYTHONPATH": os.pathsep.join([str(tmp_path / "src"), str(ROOT)]),
        },
        capture_output=True,
        check=False,
    )
    assert json.loads(report.read_text())["test"] == test


def test_only_a_failed_test_is_a_kill_on_the_page() -> None:
    mutants = [of(old=str(number)) for number in range(4)]
    verdicts = [Verdict.KILLED, Verdict.SURVIVED, Verdict.SURVIVED, Verdict.TOO_LONG]
    rows = {
        one.name: {"verdict": verdict, "seconds": 1.0, "lines": [5, 5]}
        for one, verdict in zip(mutants, verdicts, strict=True)
    }
    same = Reason(name=mutants[1].name, kind=Kind.SAME, why="No input reaches it.")
    told = summary({"clip": mutants}, rows, {same.name: same})
    assert told.startswith(f"1 of 4 mutants killed (95% interval {interval(1, 4)})")
    assert f"1 of 3 ({interval(1, 3)})" in told
    page = section({"clip": mutants}, rows, {same.name: same}, date="2026-01-01", cores=2)
    assert "No input reaches it." in page
    assert page.count("**not looked at yet**") == 1
    assert "the tests do not end" in page


def test_every_survivor_that_may_stay_has_a_reason() -> None:
    reasons = read_survivors()
    assert all(reason.why.endswith(".") for reason in reasons.values())
