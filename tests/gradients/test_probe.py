"""The probe's norms are those of plain autograd, user by user."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from userdp.errors import UseError
from userdp.gradients import Units, causal_lm_loss, trainable_parameters
from userdp.gradients.probe import ProbedNorms, probe_norms

GRID = (1, 2, 4, 5)


def plain_norm(model: nn.Module, rows: list[list[int]]) -> float:
    """The norm of ``.grad`` after one ordinary backward pass over the mean of the rows' losses."""
    model.zero_grad()
    width = max(map(len, rows))
    tokens = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    lengths = torch.tensor([len(row) for row in rows])
    causal_lm_loss(model, tokens, lengths).mean().backward()
    squares = [p.grad.double().square().sum() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    return math.sqrt(sum(float(square) for square in squares))


@pytest.mark.parametrize("family", ["gpt2-tied", "llama"])
def test_norms_equal_plain_autograd_for_every_group_size(make_model, make_rows, family) -> None:
    model = make_model(family)
    users = make_rows([1, 3, 7, 5, 2], seed=3)
    found = probe_norms(model, causal_lm_loss, Units.from_rows(users), group_sizes=GRID)
    for user, rows in enumerate(users):
        for column, size in enumerate(GRID):
            expected = plain_norm(model, rows[:size])
            assert float(found.users[user, column]) == pytest.approx(expected, rel=1e-5)
    singles = [plain_norm(model, [row]) for rows in users for row in rows[: GRID[-1]]]
    assert found.examples.tolist() == pytest.approx(singles, rel=1e-5)
    assert found.non_finite == 0
    assert all(p.grad is None for p in model.parameters())


def test_a_probe_that_averages_norms_in_place_of_gradients_is_caught(make_model, make_rows) -> None:
    """The twin misses that gradients cancel: far more than the tolerance above."""
    users = make_rows([5, 5, 5], seed=4)
    found = probe_norms(make_model(), causal_lm_loss, Units.from_rows(users), group_sizes=(5,))
    averaged = found.examples.view(3, 5).mean(1)
    assert (averaged > 1.05 * found.users[:, 0]).all()


def test_medians_are_over_users_and_over_examples() -> None:
    found = ProbedNorms(
        group_sizes=(1, 2),
        users=torch.tensor([[1.0, 0.5], [3.0, 2.0], [9.0, math.nan], [5.0, 4.0]]).double(),
        examples=torch.tensor([1.0, 1.0, 3.0, 9.0, math.inf, 5.0]).double(),
        user_of_example=torch.tensor([0, 0, 1, 2, 2, 3]),
        non_finite=1,
    )
    assert found.user_median(1) == 4.0
    assert found.user_median(2) == 2.0
    assert found.example_median() == 3.0
    assert found.example_median(1) == 4.0
    with pytest.raises(UseError, match="not probed"):
        found.user_median(4)


def test_frozen_parameters_and_users_without_examples_count_for_nothing(
    make_model, make_rows
) -> None:
    model = make_model("llama")
    for name, parameter in model.named_parameters():
        parameter.requires_grad = "norm" in name
    users = [[], *make_rows([3])]
    seen: list[int] = []
    found = probe_norms(
        model, causal_lm_loss, Units.from_rows(users), group_sizes=(1, 3), done=seen.append
    )
    assert found.users.shape == (1, 2)
    assert seen == [1, 2]
    trained = list(trainable_parameters(model).values())
    loss = causal_lm_loss(model, *list(Units.from_rows(users))[1]).mean()
    gradient = torch.autograd.grad(loss, trained)
    expected = math.sqrt(sum(float(g.double().square().sum()) for g in gradient))
    assert float(found.users[0, 1]) == pytest.approx(expected, rel=1e-5)


def test_a_gradient_that_is_not_finite_leaves_its_user_out(make_model, make_rows) -> None:
    def loss(model: nn.Module, input_ids: Tensor, lengths: Tensor) -> Tensor:
        bad = torch.where(input_ids[:, 0] == 22, math.inf, 1.0)
        return causal_lm_loss(model, input_ids, lengths) * bad

    users = [[[1, 2, 3], [22, 1, 2]], [[4, 5, 6], [7, 8, 9]]]
    found = probe_norms(make_model(), loss, Units.from_rows(users), group_sizes=(1, 2))
    assert found.non_finite == 1
    assert math.isnan(found.users[0, 1])
    assert found.user_median(2) == float(found.users[1, 1])


@pytest.mark.parametrize("grid", [(), (2, 1), (1, 1), (0, 1), (1.5,)])
def test_a_grid_that_does_not_rise_is_refused(make_model, make_rows, grid) -> None:
    with pytest.raises(UseError):
        probe_norms(make_model(), causal_lm_loss, Units.from_rows(make_rows([2])), group_sizes=grid)


def test_nobody_to_probe_is_refused(make_model) -> None:
    with pytest.raises(UseError, match="no user with examples"):
        probe_norms(make_model(), causal_lm_loss, Units.from_rows([[]]), group_sizes=(1,))
