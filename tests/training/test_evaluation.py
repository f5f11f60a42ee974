"""Losses by user: whom they are of, and that each is its user's alone."""

import numpy as np
import pytest
import torch

from tests.training.toy import cycles, toy_model, toy_store
from userdp.data.splits import Split
from userdp.gradients import causal_lm_loss
from userdp.training.store_losses import evaluate, rows_of, split_losses, user_losses


def one_by_one(model, store, split):
    """Each user's summed loss and targets, a row at a time: the oracle."""
    part = store.split(split)
    sums, targets = np.zeros(len(part.counts)), np.zeros(len(part.counts))
    for user, example in zip(*rows_of(part, np.arange(len(part.counts))), strict=True):
        row = torch.tensor(part.gather([user], [example]).row(0).astype(np.int64))
        if len(row) > 1:
            logits = model.eval()(input_ids=row[None], use_cache=False).logits[0, :-1].detach()
            sums[user] += torch.nn.functional.cross_entropy(logits, row[1:], reduction="sum").item()
            targets[user] += len(row) - 1
    return sums, targets


@pytest.mark.parametrize("split", [Split.HELD_OUT_USERS, Split.HELD_OUT_EXAMPLES])
def test_losses_per_token_per_user_and_their_quantiles_are_those_of_one_row_at_a_time(store, split):
    model = toy_model(store)
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


def pooled_losses(model, store, split, *, loss):
    """The broken twin: all users' rows in one pass."""
    part = store.split(split)
    users, examples = rows_of(part, np.arange(len(part.counts)))
    losses, targets = split_losses(model, part, users, examples, loss=loss, batch=10**6)
    return np.bincount(users, weights=losses * targets) / np.bincount(users, weights=targets)


@pytest.mark.parametrize(
    ("losses", "alone"), [(user_losses, True), (pooled_losses, False)], ids=["honest", "twin"]
)
def test_a_users_loss_depends_on_nobody_else_even_if_passes_do(tmp_path, losses, alone):
    texts, found = cycles(30), []
    for name in ("all", "without the fourth"):
        store = toy_store(tmp_path / name, texts, held_out=0.0)
        found.append(losses(toy_model(store), store, Split.TRAIN, loss=coupled_loss).tolist())
        texts.pop(b"user003", None)
    found[0].pop(3)
    assert (found[0] == found[1]) == alone
