"""Many users at once are one user after another, and nobody's model knows another's text."""

import copy
import itertools

import numpy as np
import pytest
import torch

from benchmarks.personalize import one_after_another
from tests.training.toy import cycles, toy_model, toy_store
from userdp.data.splits import Split
from userdp.errors import UseError
from userdp.gradients import Units, causal_lm_loss
from userdp.training import personalization
from userdp.training.config import TrainConfig
from userdp.training.lora import add_adapters
from userdp.training.packing import pack
from userdp.training.personalization import (
    LocalTraining,
    _losses,
    _shared_passes,
    local_users,
    personalize,
    traceable,
)

HOW = LocalTraining(learning_rate=0.3, epochs=4, batch_size=2, parallel=5)


@pytest.fixture(scope="module")
def held_out(tmp_path_factory):
    store = toy_store(tmp_path_factory.mktemp("people"), cycles(60), held_out=0.5)
    return store, store.split(Split.HELD_OUT_USERS)


def both(store, split, how, *, lora):
    model = toy_model(store)
    if lora:
        model = add_adapters(model, TrainConfig(lora_rank=2))
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "lora_B" in name:
                    parameter.normal_(0, 0.1, generator=torch.Generator().manual_seed(1))
    alone = model.eval()
    together = traceable(copy.deepcopy(alone))
    users, _ = local_users(split, how)
    return personalize(together, split, users, how), one_after_another(alone, split, users, how)


@pytest.mark.parametrize("lora", [False, True], ids=["all weights", "adapters"])
def test_many_users_at_once_equal_one_after_another(held_out, lora):
    found, expected = both(*held_out, HOW, lora=lora)
    assert len(found.users) > 10
    assert np.abs(found.before - expected.before).max() < 1e-5
    assert np.abs(found.after - expected.after).max() < 1e-5
    assert np.array_equal(found.tokens, expected.tokens)
    assert np.abs(found.after - found.before).max() > 0.01


def test_a_broken_mask_is_caught(held_out, monkeypatch):
    honest = personalization.pack

    def leaking(units, rows, *, mean_of_rows):
        packed = honest(units, rows, mean_of_rows=mean_of_rows)
        return packed._replace(segments=packed.segments.clamp(max=1))

    monkeypatch.setattr(personalization, "pack", leaking)
    found, expected = both(*held_out, HOW, lora=False)
    assert np.abs(found.after - expected.after).max() > 1e-4


def test_packed_losses_are_the_rows_own(held_out):
    store, _ = held_out
    model = traceable(toy_model(store))
    units = Units.from_rows([[[5, 6, 7, 8], [9, 3], [4]], [[7, 7, 7]], [[2, 3, 4, 5, 6, 7, 8]]])
    packed = pack(units, [np.array([0, 1, 2]), np.array([3]), np.array([4])], mean_of_rows=True)
    found = _losses(model, packed.flat()).view(3, -1).sum(1)
    rows = causal_lm_loss(model, units.input_ids, units.lengths)
    expected = torch.stack([rows[:3].mean(), rows[3], rows[4]])
    assert torch.allclose(found, expected, atol=1e-6)
    unmarked = torch.zeros_like(units.input_ids, dtype=torch.bool)
    unmarked[0, 2] = unmarked[4, 1:3] = True
    masked = Units(
        input_ids=units.input_ids, lengths=units.lengths, offsets=units.offsets, targets=unmarked
    )
    packed = pack(masked, [np.array([0, 1, 2]), np.array([3]), np.array([4])], mean_of_rows=True)
    found = _losses(model, packed.flat()).view(3, -1).sum(1)
    rows = causal_lm_loss(model, units.input_ids, units.lengths, unmarked)
    assert torch.allclose(found, torch.stack([rows[:3].mean(), rows[3], rows[4]]), atol=1e-6)


def test_packed_rows_are_no_wider_than_they_must_be():
    """Three rows of 100 tokens in one width of 256 would leave 212 of 512 places empty."""
    units = Units.from_rows([[list(range(1, 102))] * 3, [[5] * 11]])
    packed = pack(units, [np.array([0, 1, 2]), np.array([3])], mean_of_rows=True)
    assert packed.input_ids.shape == (2, 3, 100)
    assert [len(row[row > 0].unique()) for row in packed.segments[0]] == [1, 1, 1]


def test_who_shares_a_pass_is_the_cheapest_cut(held_out):
    _, split = held_out
    users, _ = local_users(split, HOW)
    users = users[:9]
    tokens = [
        [int(split.lengths(np.full(len(rows), u.user), rows).sum()) for rows in (u.train, u.test)]
        for u in users
    ]
    order = sorted(range(9), key=lambda k: (-len(users[k].batches), -tokens[k][0]))

    def cost(groups, call):
        return sum(
            len(group)
            * (3 * 4 * max(tokens[k][0] for k in group) + 2 * max(tokens[k][1] for k in group))
            + 3 * call * (max(len(users[k].batches) for k in group) + 1)
            for group in groups
        )

    for call in (0, 3, 10, 1000):
        found = _shared_passes(split, users, most=4, call=call)
        assert sorted(k for group in found for k in group) == list(range(9))
        assert max(map(len, found)) <= 4
        cuts = (
            [order[a:b] for a, b in itertools.pairwise([0, *inner, 9])]
            for count in range(9)
            for inner in itertools.combinations(range(1, 9), count)
        )
        least = min(cost(cut, call) for cut in cuts if max(map(len, cut)) <= 4)
        assert cost(found, call) == pytest.approx(least)


def test_halves_are_disjoint_complete_and_the_users_own(held_out):
    _, split = held_out
    users, dropped = local_users(split, HOW)
    assert len(users) + dropped["users_without_two_examples"] == len(split.counts)
    for user in users:
        together = sorted([*user.train, *user.test])
        assert together == list(range(split.counts[user.user]))
        assert len(user.train) == split.counts[user.user] // 2
        passes = user.batches[user.batches >= 0]
        assert np.array_equal(np.bincount(passes), np.full(len(user.train), HOW.epochs))
    capped, dropped = local_users(split, LocalTraining(most_examples=3))
    assert all(len(user.train) + len(user.test) <= 3 for user in capped)
    assert dropped["examples_over_the_cap"] == np.maximum(split.counts - 3, 0).sum()


def test_the_model_is_left_as_it_was(held_out):
    store, split = held_out
    model = traceable(toy_model(store))
    before = [p.detach().clone() for p in model.parameters()]
    personalize(model, split, local_users(split, HOW)[0], HOW)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


@pytest.mark.parametrize("bad", [{"learning_rate": 0.0}, {"epochs": 0}, {"most_examples": 1}])
def test_values_out_of_range_are_refused(bad):
    with pytest.raises(UseError):
        LocalTraining(**bad)
