"""`userdp probe` from outside: what is measured, on whom, and what it writes."""

from __future__ import annotations

import json
import math
import shutil
import stat
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.speed import fast_then_slow
from tests.training.toy import cycles, toy_model, toy_store
from userdp.claims.lineage import Lineage
from userdp.cli.app import run as userdp
from userdp.data.splits import Split
from userdp.data.store import UserStore
from userdp.gradients import Units, causal_lm_loss
from userdp.ledger import StoreLedger
from userdp.plans.norms import GradientNorms
from userdp.plans.origin import Provenance
from userdp.training import probe as probe_module
from userdp.training.probe import power_grid, probe_norms, probe_store
from userdp.training.releasing import save_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A store, and a model that reads it."""
    place = tmp_path_factory.mktemp("probe")
    store = toy_store(place, cycles(60), held_out=0.3)
    save_model(toy_model(store), place / "model", tokenizer=store.tokenizer_path, lineage=Lineage())
    return place


def probe(folder: Path, out: Path, *options: str) -> int:
    store, model = str(folder / "store"), str(folder / "model")
    return userdp(["probe", store, "--model", model, "--out", str(out), *options])


def plain_medians(folder: Path, split: Split, grid: tuple[int, ...]) -> list[float]:
    """Over all users of a split, all of whose examples count at the largest G."""
    store = UserStore.open(folder / "store")
    part = store.split(split)
    model = toy_model(store)
    norms = []
    for user, count in enumerate(part.counts):
        rows = part.gather(np.full(count, user), np.arange(count))
        units = Units.from_flat(rows.tokens, rows.offsets, np.array([0, count]))
        model.zero_grad()
        causal_lm_loss(model, units.input_ids, units.lengths).mean().backward()
        squares = [p.grad.double().square().sum() for p in model.parameters()]
        norms.append(float(torch.stack(squares).sum().sqrt()))
    return [float(np.median(norms)) for _ in grid]


@pytest.mark.parametrize("source", fast_then_slow(["held-out-users", "public", "non-private"]))
def test_the_largest_group_is_every_users_whole_gradient(folder, tmp_path, capsys, source) -> None:
    out = tmp_path / "norms.json"
    assert probe(folder, out, "--source", source, "--max-group-size", "64", "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    norms = GradientNorms.load(out)
    split = Split.HELD_OUT_USERS if source == "held-out-users" else Split.TRAIN
    (expected,) = plain_medians(folder, split, (64,))
    assert norms.user_norm(64) == pytest.approx(expected, rel=1e-5)
    assert norms.users == len(UserStore.open(folder / "store").split(split).counts)
    assert str(norms.source) == source
    assert printed["user_norms"]["64"] == norms.user_norm(64)
    assert printed["operator_only"] == (source != "public")
    mode = stat.S_IMODE(out.stat().st_mode)
    assert mode == (0o644 if source == "public" else 0o600)


def plain_norm(model: nn.Module, rows: list[list[int]]) -> float:
    """The norm of ``.grad`` after one ordinary backward pass over the mean of the rows' losses."""
    model.zero_grad()
    one = Units.from_rows([rows])
    causal_lm_loss(model, one.input_ids, one.lengths).mean().backward()
    norm = torch.stack([p.grad.double().square().sum() for p in model.parameters()]).sum().sqrt()
    model.zero_grad()
    return float(norm)


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
    averaged = of_rows[-5:].mean()  # the twin misses that gradients cancel
    assert averaged > 1.05 * of_users[-1, -1]


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


@pytest.mark.slow
def test_means_over_more_examples_are_shorter(folder) -> None:
    from userdp.training.config import TrainConfig

    store = UserStore.open(folder / "store")
    config = TrainConfig(model=str(folder / "model"))
    norms = probe_store(store, config, source=Provenance.PUBLIC, max_group_size=8, seed=1)
    assert list(norms.user_norms) == [1, 2, 4, 8]
    assert norms.user_norm(8) < norms.user_norm(1)
    again = probe_store(store, config, source=Provenance.PUBLIC, max_group_size=8, seed=1)
    assert again == norms
    few = probe_store(store, config, source=Provenance.PUBLIC, max_group_size=8, seed=1, users=5)
    assert few.users == 5


def test_the_grid_ends_at_the_largest_group() -> None:
    assert power_grid(1) == (1,)
    assert power_grid(64) == (1, 2, 4, 8, 16, 32, 64)


def test_a_store_without_held_out_users_is_refused_with_the_way_out(tmp_path, capsys) -> None:
    store = toy_store(tmp_path / "none", cycles(5), held_out=0.0)
    save_model(
        toy_model(store), tmp_path / "model", tokenizer=store.tokenizer_path, lineage=Lineage()
    )
    model = ["--model", str(tmp_path / "model")]
    out = tmp_path / "norms.json"
    assert userdp(["probe", str(store.path), *model, "--out", str(out)]) == 2
    assert "--source public" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize("options", [["--users", "0"], ["--max-group-size", "0"]])
def test_bad_numbers_leave_no_file(folder, tmp_path, capsys, options) -> None:
    assert probe(folder, tmp_path / "norms.json", *options) == 2
    assert not (tmp_path / "norms.json").exists()


@pytest.mark.slow
def test_what_the_norms_are_is_said(folder, tmp_path, capsys) -> None:
    assert probe(folder, tmp_path / "norms.json", "--source", "non-private") == 0
    found = capsys.readouterr()
    assert "not covered by the claim" in found.out
    assert "non-private" in found.err


@pytest.fixture
def charged(folder, tmp_path) -> Path:
    """A store of its own, since a release is charged there; and the model."""
    pytest.importorskip("opendp", reason="the extra queries is not installed")
    shutil.copytree(folder / "store", tmp_path / "here" / "store")
    shutil.copytree(folder / "model", tmp_path / "here" / "model")
    return tmp_path / "here"


RELEASE = ["--source", "dp-release", "--users", "100", "--max-group-size", "2"]


@pytest.mark.slow
def test_a_release_is_charged_and_near_where_epsilon_is_large(charged, tmp_path, capsys) -> None:
    out = tmp_path / "norms.json"
    price = ["--population", "100", "--epsilon", "200"]
    assert probe(charged, out, *RELEASE, *price) == 0
    assert "released under DP" in capsys.readouterr().out
    norms = GradientNorms.load(out)
    (line,) = StoreLedger(charged / "store").charges()
    assert (norms.ledger_line, line.query_epsilon) == (line.run_id, 200.0)
    assert norms.users == 100  # as declared: how many were measured is private
    assert norms.median_examples_per_user is None
    assert (
        probe(charged, tmp_path / "exact.json", "--source", "public", "--max-group-size", "2") == 0
    )
    exact = GradientNorms.load(tmp_path / "exact.json")
    for size in (1, 2):
        assert norms.user_norm(size) == pytest.approx(exact.user_norm(size), rel=0.3)
    assert norms.example_norm == norms.user_norm(1)


@pytest.mark.slow
def test_who_is_measured_is_drawn_by_a_coin_of_each(charged, tmp_path, monkeypatch) -> None:
    """Each user's coin is their own: nobody's presence moves who else is measured."""
    seen = []
    honest = probe_module.draw_units

    def noted(split, chosen, **rest):
        seen.append(len(chosen))
        return honest(split, chosen, **rest)

    monkeypatch.setattr(probe_module, "draw_units", noted)
    for _ in range(12):
        options = [*RELEASE, "--population", "200", "--epsilon", "1", "--overwrite"]
        assert probe(charged, tmp_path / "norms.json", *options) == 0
    people = len(UserStore.open(charged / "store").split(Split.TRAIN).counts)
    assert abs(np.mean(seen) - people / 2) < 4 * np.sqrt(people / 4 / 12)
    assert len(set(seen)) > 1


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ([*RELEASE], "needs the declared number of users"),
        ([*RELEASE, "--population", "100", "--epsilon", "1", "--seed", "3"], "no seed"),
        ([*RELEASE, "--population", "100", "--epsilon", "-1"], "epsilon"),
        (["--source", "public", "--epsilon", "1"], "no other source takes them"),
    ],
)
def test_bad_releases_charge_nobody(charged, tmp_path, capsys, options, says) -> None:
    assert probe(charged, tmp_path / "norms.json", *options) == 2
    assert says in " ".join(capsys.readouterr().err.split())
    assert StoreLedger(charged / "store").charges() == []
    assert not (tmp_path / "norms.json").exists()
