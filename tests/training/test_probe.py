"""What `userdp plan --model` measures, and on whom."""

from __future__ import annotations

import math
import shutil
import stat
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.speed import fast_then_slow
from tests.training.toy import cycles, toy_model, toy_store
from userdp.claims.lineage import Lineage
from userdp.core.errors import UseError
from userdp.data.splits import Split
from userdp.data.user_store import UserStore
from userdp.gradients import Units, causal_lm_loss
from userdp.ledger import StoreLedger
from userdp.plans.gradient_norms import GradientNorms, Measure
from userdp.plans.provenance import Provenance
from userdp.training import norm_probe as probe_module
from userdp.training.config import TrainConfig
from userdp.training.lora import freeze
from userdp.training.norm_probe import probe_norms, probe_store
from userdp.training.released_model import save_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A store, and a model that reads it."""
    place = tmp_path_factory.mktemp("probe")
    store = toy_store(place, cycles(60), held_out=0.3)
    save_model(toy_model(store), place / "model", tokenizer=store.tokenizer_path, lineage=Lineage())
    return place


def probed(folder: Path, population: int | None = None, **how: Any) -> GradientNorms:
    config, store = TrainConfig(model=str(folder / "model")), UserStore.open(folder / "store")
    return probe_store(store, config, Measure(**how), population=population)


def plain_norm(model: nn.Module, rows: list[list[int]]) -> float:
    """The norm of ``.grad`` after one ordinary backward pass over the mean of the rows' losses."""
    model.zero_grad()
    one = Units.from_rows([rows])
    causal_lm_loss(model, one.input_ids, one.lengths).mean().backward()
    norm = (
        torch.stack([p.grad.double().square().sum() for p in model.parameters() if p.requires_grad])
        .sum()
        .sqrt()
    )
    model.zero_grad()
    return float(norm)


@pytest.mark.parametrize("source", fast_then_slow(["held-out-users", "public", "non-private"]))
def test_the_largest_group_is_every_users_whole_gradient(folder, tmp_path, source) -> None:
    norms, out = probed(folder, source=Provenance(source), max_group_size=64), tmp_path / "n.json"
    norms.save(out)
    assert GradientNorms.load(out) == norms
    store = UserStore.open(folder / "store")
    freeze(model := toy_model(store))  # as training does
    part = store.split(Split.HELD_OUT_USERS if source == "held-out-users" else Split.TRAIN)
    each = []
    for user, count in enumerate(part.counts):
        rows = part.gather(np.full(count, user), np.arange(count))
        ends = zip(rows.offsets[:-1], rows.offsets[1:], strict=True)
        each.append(plain_norm(model, [rows.tokens[begin:end].tolist() for begin, end in ends]))
    assert norms.user_norms[64] == pytest.approx(float(np.median(each)), rel=1e-5)
    assert (norms.users, str(norms.source)) == (len(part.counts), source)
    assert stat.S_IMODE(out.stat().st_mode) == (0o644 if source == "public" else 0o600)


def test_norms_equal_plain_autograd_for_every_group_size_and_every_example(folder) -> None:
    model, grid = toy_model(UserStore.open(folder / "store")), (1, 2, 4)
    users = [
        [[2, 3, 4]],
        [[5, 6], [7, 8, 9], [2, 4]],
        [[3, 2, 5, 4], [6, 7], [8, 9], [2, 3], [4, 5]],
    ]
    done: list[int] = []
    of_users, of_rows = probe_norms(
        model, causal_lm_loss, Units.from_rows(users), grid, done=done.append
    )
    for user, rows in enumerate(users):
        for column, size in enumerate(grid):
            expected = plain_norm(model, rows[:size])
            assert float(of_users[user, column]) == pytest.approx(expected, rel=1e-5)
    singles = [plain_norm(model, [row]) for rows in users for row in rows]
    assert of_rows.tolist() == pytest.approx(singles, rel=1e-5)
    assert done == [1, 2, 3, 4]
    assert of_rows[-5:].mean() > 1.05 * of_users[-1, -1]


def test_a_gradient_that_is_not_finite_leaves_its_user_out(folder) -> None:
    def loss(model: nn.Module, input_ids: Tensor, lengths: Tensor) -> Tensor:
        bad = torch.where(input_ids[:, 0] == 9, math.inf, 1.0)
        return causal_lm_loss(model, input_ids, lengths) * bad

    model = toy_model(UserStore.open(folder / "store"))
    units = Units.from_rows([[[2, 3, 4], [9, 2, 3]], [[4, 5, 6], [7, 8, 2]]])
    of_users, of_rows = probe_norms(model, loss, units, (1, 2))
    assert of_users.isfinite().tolist() == [[True, False], [True, True]]
    assert of_rows.isfinite().tolist() == [True, False, True, True]
    assert probe_module._median(of_users[:, 1]) == float(of_users[1, 1])


@pytest.fixture
def charged(folder, tmp_path) -> Path:
    """A store of its own, since a release is charged there; and the model."""
    pytest.importorskip("opendp", reason="the extra queries is not installed")
    return shutil.copytree(folder, tmp_path / "here")


def test_a_release_that_cannot_be_drawn_costs_nothing(charged, monkeypatch) -> None:
    monkeypatch.setattr(probe_module, "require_rows_apart", mock.Mock(side_effect=UseError("no")))
    with pytest.raises(UseError, match="no"):
        probed(charged, population=100, source=Provenance.DP_RELEASE, users=100, epsilon=200)
    assert not StoreLedger(charged / "store").history().charges


@pytest.mark.slow
def test_a_release_is_charged_and_near_where_epsilon_is_large(charged) -> None:
    how = {"source": Provenance.DP_RELEASE, "users": 100, "max_group_size": 2, "epsilon": 200}
    norms = probed(charged, population=100, **how)
    (line,) = StoreLedger(charged / "store").history().charges.values()
    assert (norms.ledger_line, line.pays_for.pure_epsilon) == (line.run_id, 200.0)
    assert norms.users == 100  # as declared: how many were measured is private
    assert norms.median_examples_per_user is None
    exact = probed(charged, source=Provenance.PUBLIC, max_group_size=2)
    for size in (1, 2):
        assert norms.user_norms[size] == pytest.approx(exact.user_norms[size], rel=0.3)
    assert norms.example_norm == norms.user_norms[1]


@pytest.mark.slow
def test_who_is_measured_is_drawn_by_a_coin_of_each(charged, monkeypatch) -> None:
    """Each user's coin is their own: nobody's presence moves who else is measured."""
    seen, honest = [], probe_module.draw_units

    def noted(split, chosen, **rest):
        seen.append(len(chosen))
        return honest(split, chosen, **rest)

    monkeypatch.setattr(probe_module, "draw_units", noted)
    how = {"source": Provenance.DP_RELEASE, "max_group_size": 2, "epsilon": 1.0}
    for _ in range(12):
        probed(charged, users=100, population=200, **how)
    people = len(UserStore.open(charged / "store").split(Split.TRAIN).counts)
    assert abs(np.mean(seen) - people / 2) < 4 * np.sqrt(people / 4 / 12)
    assert len(set(seen)) > 1
