"""The sharded engine: the reference's norms and sum, on a model that no process holds whole."""

from __future__ import annotations

import pytest
import torch

from tests.gradients import sharded_jobs as jobs
from tests.training.worlds import run_world


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "checkpointing", "family"),
    [
        (1, False, "gpt2"),
        (1, False, "no layers"),  # all is gathered at once
        (2, False, "gpt2"),
        (2, True, "gpt2"),
        (2, True, "llama"),
    ],
)
def test_norms_and_sum_are_the_references(tmp_path, size, checkpointing, family):
    results = run_world(size, jobs.compares, tmp_path, checkpointing, family)
    assert sorted(unit for one in results for unit in one["mine"]) == list(range(6))
    for one in results:
        finite = one["oracle_norms"].isfinite()
        torch.testing.assert_close(
            one["norms"][finite], one["oracle_norms"][finite], rtol=1e-5, atol=0
        )
        assert one["apart"] < 1e-6 < one["size"]
        assert one["grads"] == []


@pytest.mark.slow
def test_invariant_6_a_unit_that_is_not_finite_adds_zero_and_is_counted(tmp_path):
    results = run_world(2, jobs.compares, tmp_path, False)
    assert [one["non_finite"] for one in results] == [int(one["bad"]) for one in results]
    assert sum(one["non_finite"] for one in results) == 1
    assert all(one["apart"] < 1e-6 for one in results)


@pytest.mark.slow
def test_invariant_14_both_passes_see_the_same_masks(tmp_path):
    """Under dropout, with a unit that is not finite beside the others: the most is C."""
    for moves, size in run_world(2, jobs.dropout_moves, tmp_path, False):
        assert 0.9 < max(moves) <= 1
        assert moves[2] < 1e-6  # the unit that counts as zero leaves no trace
        assert size > 0


@pytest.mark.slow
def test_twin_a_second_pass_with_new_masks_is_caught(tmp_path):
    for moves, _ in run_world(2, jobs.dropout_moves, tmp_path, True):
        assert max(moves) > 1.02, moves


@pytest.mark.slow
def test_what_would_need_each_units_gradient_is_refused_and_wrong_norms_are_caught(tmp_path):
    for found in run_world(2, jobs.refusals, tmp_path):
        assert "item_clip_norm" in found["items"]
        assert "not followed through rand" in found["coin"]
        assert "used more than once" in found["twice"]
        assert "no per-unit rule for its bias" in found["no rule"]
        assert "disagree on made-up rows" in found["half norms"]
        assert found["gathered"] == ""  # a refused model's layers would keep the weights of before


@pytest.mark.slow
def test_a_sharded_model_that_computes_in_fewer_bits_is_refused_before_its_data_is_read(tmp_path):
    for found in run_world(2, jobs.narrow, tmp_path):
        assert "fewer bits than float32" in found["refused"]


def test_invariant_3_factors_push_nothing_over_the_end_of_float32(tmp_path):
    """Broken twin: the second way through the graph begins at the factors times the losses."""
    assert 0.99 < max(run_world(1, jobs.near_the_end, tmp_path / "ours", False)[0]) <= 1
    assert max(run_world(1, jobs.near_the_end, tmp_path / "twin", True)[0]) > 1.3


def test_a_row_alone_in_its_pass_may_be_computed_again(tmp_path):
    """Nothing labels what one row saves, as everything is that row's; it was refused."""
    norm, length = run_world(1, jobs.lone_row, tmp_path)[0]
    assert norm > jobs.CLIP
    assert length == pytest.approx(jobs.CLIP, rel=2e-3)


def test_a_loss_without_a_gradient_on_made_up_rows_is_refused(tmp_path):
    """Equal sums of nothing would certify any rule, and there is no reference to fall back to."""
    assert "zero or not finite" in run_world(1, jobs.without_a_gradient, tmp_path)[0]
