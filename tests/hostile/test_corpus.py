"""Every case that broke a reader once ends in a right result or in one clear error.

The campaign (``make hostile``) looks for more; see `benchmarks.faults.hostile`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.faults.hostile.corpus import CORPUS, Kept, read_corpus
from benchmarks.faults.hostile.judge import Judge, Verdict
from benchmarks.faults.hostile.targets import targets
from benchmarks.faults.hostile.watch import Watch

KEPT = read_corpus()
_LARGEST = 150_000
"""Bytes of a file that is kept: that of an id of 100,000 letters."""


@pytest.fixture(scope="module")
def judges(tmp_path_factory, watch: Watch) -> Callable[[str], Judge]:
    """The judge of a target, whose world is made once."""
    made: dict[str, Judge] = {}
    folder = tmp_path_factory.mktemp("hostile")
    watch.move(folder)

    def judge_of(name: str) -> Judge:
        if name not in made:
            made[name] = Judge(targets()[name], folder / name, watch)
            made[name].check_world()
        return made[name]

    return judge_of


@pytest.mark.parametrize("kept", KEPT, ids=lambda kept: f"{kept.target}/{kept.name}")
def test_a_case_that_broke_a_reader_is_right_or_refused_in_one_clear_error(
    kept: Kept, judges: Callable[[str], Judge]
) -> None:
    outcome = judges(kept.target).judge(kept.case)
    assert outcome.verdict is not Verdict.FINDING, f"{outcome.site}: {outcome.why}"


def test_what_is_kept_is_small_and_of_targets_that_there_are() -> None:
    names = {kept.target for kept in KEPT}
    assert names <= targets().keys()
    files = [path for path in CORPUS.rglob("*") if path.is_file()]
    assert all(path.stat().st_size <= _LARGEST for path in files)
    assert len(files) == 2 * len(KEPT), "each case is one file, and what is said of it"


def test_every_target_has_a_world_with_files() -> None:
    for target in targets().values():
        assert target.what, target.name


@pytest.mark.slow
@pytest.mark.parametrize("name", targets())
def test_the_world_of_each_target_is_read(
    name: str, judges: Callable[[str], Judge], tmp_path: Path
) -> None:
    judge = judges(name)
    for case in judge.world.seeds():
        assert judge.judge(case).verdict is Verdict.RIGHT, case.file
