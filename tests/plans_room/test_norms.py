"""Gradient norms as a file: what is read is what was written, and nothing else is taken."""

import json
import math
import stat

import pytest

from tests.plans_room.conftest import synthetic_norms
from userdp.codec import encode
from userdp.errors import UseError
from userdp.plans.norms import GradientNorms
from userdp.plans.origin import Provenance


@pytest.mark.pitfall(number=44)
def test_a_file_of_norms_says_what_was_saved(tmp_path, norms):
    norms.save(tmp_path / "norms.json")
    assert GradientNorms.load(tmp_path / "norms.json") == norms
    values = json.loads((tmp_path / "norms.json").read_text())
    assert values["schema"] == "userdp.norms/5"
    assert list(values["user_norms"]) == ["1", "2", "4", "8", "16", "32", "64"]
    assert values["user_norms"]["1"] == norms.example_norm
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(
    ("changes", "mode"),
    [
        ({}, 0o644),
        ({"source": Provenance.NON_PRIVATE}, 0o600),
        ({"source": Provenance.HELD_OUT}, 0o600),
    ],
)
def test_private_norms_are_their_owners_alone(tmp_path, changes, mode):
    synthetic_norms(**changes).save(tmp_path / "norms.json")
    assert stat.S_IMODE((tmp_path / "norms.json").stat().st_mode) == mode


def test_between_measured_group_sizes_the_line_is_straight_in_logarithms():
    norms = synthetic_norms(shared=0.0)  # exactly G^-1/2
    for size in (1, 3, 5, 7, 33, 63, 64):
        assert norms.user_norm(size) == pytest.approx(size**-0.5, rel=1e-12)


def test_beyond_the_largest_group_size_nothing_is_known(norms):
    with pytest.raises(UseError, match="up to group size 64"):
        norms.user_norm(65)
    with pytest.raises(UseError):
        norms.user_norm(0)


@pytest.mark.parametrize(
    "changes",
    [
        {"user_norms": {}},
        {"user_norms": {2: 1.0}},
        {"user_norms": {1: math.nan}},
        {"user_norms": {1: 0.0}},
        {"user_norms": {1: math.inf}},
        {"user_norms": {1: 1.0, 0: 1.0}},
        {"example_norm": math.nan},
        {"users": 0},
        {"source": Provenance.DP_RELEASE},
        {"ledger_line": "query-1"},
        {"median_examples_per_user": 0},
    ],
)
def test_norms_that_cannot_be_are_refused(changes):
    with pytest.raises(UseError):
        synthetic_norms(**changes)


@pytest.mark.parametrize(
    "changes", [{"source": "somewhere"}, {"user_norms": {"1": "nan"}}, {"more": 1}]
)
def test_a_file_that_holds_no_norms_is_bad_use(tmp_path, norms, changes):
    (tmp_path / "norms.json").write_text(json.dumps({**encode(norms), **changes}))
    with pytest.raises(UseError):
        GradientNorms.load(tmp_path / "norms.json")
