"""Losses by user: whom they are of, and that each is its user's alone."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tests.training.toy import cycles, toy_model, toy_store
from userdp.data.splits import Split
from userdp.gradients import causal_lm_loss
from userdp.training.losses import evaluate, user_losses, users_by_hash


def one_by_one(model, store, split) -> tuple[np.ndarray, np.ndarray]:
    """Each user's summed loss and targets, a row at a time: the oracle."""
    part = store.split(split)
    sums, targets = np.zeros(len(part.counts)), np.zeros(len(part.counts))
    with torch.no_grad():
        for user, count in enumerate(part.counts):
            for example in range(count):
                row = torch.tensor(part.gather([user], [example]).row(0).astype(np.int64))[None]
                if row.shape[1] > 1:
                    logits = model.eval()(input_ids=row, use_cache=False).logits[0, :-1]
                    sums[user] += torch.nn.functional.cross_entropy(
                        logits, row[0, 1:], reduction="sum"
                    ).item()
                    targets[user] += row.shape[1] - 1
    return sums, targets


def test_losses_per_token_per_user_and_their_quantiles_are_those_of_one_row_at_a_time(store):
    model = toy_model(store)
    for split in (Split.HELD_OUT_USERS, Split.HELD_OUT_EXAMPLES):
        sums, targets = one_by_one(model, store, split)
        each = sums[targets > 0] / targets[targets > 0]
        found, of_users = evaluate(model, store, split, batch=5)
        assert found["loss"] == pytest.approx(sums.sum() / targets.sum(), rel=1e-5)
        assert found["user_loss"] == pytest.approx(each.mean(), rel=1e-5)
        assert found["user_quantiles"]["p50"] == pytest.approx(np.median(each), rel=1e-5)
        quantiles = list(found["user_quantiles"].values())
        assert quantiles == sorted(quantiles)
        assert of_users == pytest.approx(each, rel=1e-5)
        assert user_losses(model, store, split, batch=3) == pytest.approx(each, rel=1e-5)


def coupled_loss(model, input_ids, lengths, targets=None):
    """A loss in which each row's number depends on who shares its pass."""
    losses = causal_lm_loss(model, input_ids, lengths)
    return losses + losses.mean() + len(losses)


def pooled_losses(model, store, split, *, loss) -> list[float]:
    """The broken twin: all users' rows in one pass."""
    from userdp.training.losses import rows_of, split_losses

    part = store.split(split)
    users, examples = rows_of(part, users_by_hash(part, None))
    losses, targets = split_losses(model, part, users, examples, loss=loss, batch=10**6)
    sums = np.bincount(users, weights=losses * targets)
    return list(sums / np.bincount(users, weights=targets))


def test_a_users_loss_depends_on_nobody_else_even_if_passes_do(tmp_path):
    texts = cycles(30)
    without = {name: records for name, records in texts.items() if name != b"user003"}
    stores = [
        toy_store(tmp_path / str(number), held, held_out=0.0)
        for number, held in enumerate((texts, without))
    ]
    torch.manual_seed(0)
    model = toy_model(stores[0])
    alone = [list(user_losses(model, store, Split.TRAIN, loss=coupled_loss)) for store in stores]
    alone[0].pop(3)
    assert alone[0] == alone[1]
    pooled = [pooled_losses(model, store, Split.TRAIN, loss=coupled_loss) for store in stores]
    pooled[0].pop(3)
    assert not math.isclose(pooled[0][0], pooled[1][0], rel_tol=1e-4)
