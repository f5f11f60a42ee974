"""Losses by user, exactly and personalized; and the evaluation of a loop's own run."""

from __future__ import annotations

import copy
import shutil
import stat

import numpy as np
import pytest
import torch

from tests.speed import fast_then_slow
from tests.training.toy import adapted, cycles, loaded, moved, toy_model, toy_store, trained
from userdp.claims.lineage import Lineage
from userdp.core.errors import UseError
from userdp.data.splits import Split
from userdp.gradients import causal_lm_loss, trainable_parameters
from userdp.ledger import StoreLedger
from userdp.training.causal_models import read_model
from userdp.training.config import TrainConfig
from userdp.training.evaluation import evaluate_splits, release_evaluation
from userdp.training.lora import choose_trained
from userdp.training.personalization import LocalTraining, halves, personalize
from userdp.training.released_model import save_model
from userdp.training.store_losses import evaluate, rows_of, split_losses, user_losses


def losses_of(model, split, user, examples):
    """Each example's summed loss and targets, one row in a pass: the oracle."""
    for example in examples:
        row = torch.tensor(split.gather([user], [example]).row(0).astype(np.int64))
        logits = model(input_ids=row[None], use_cache=False).logits[0, :-1]
        yield torch.nn.functional.cross_entropy(logits, row[1:], reduction="sum"), len(row) - 1


def one_by_one(model, store, split):
    """Each user's summed loss and targets."""
    part = store.split(split)
    sums, targets = np.zeros(len(part.counts)), np.zeros(len(part.counts))
    for user, count in enumerate(part.counts):
        for loss, tokens in losses_of(model.eval(), part, user, range(count)):
            sums[user] += loss.item()
            targets[user] += tokens
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


HOW = LocalTraining(learning_rate=(0.3, 0.05), epochs=4, batch_size=2)


@torch.no_grad()
def mean_loss(model, split, user):
    _, test, _ = halves(split, user, HOW)
    sums, targets = zip(*losses_of(model, split, user, test), strict=True)
    return float(sum(sums)) / max(1, sum(targets))


def oracle(model, split, user, rate):
    """The user's loss after SGD written out, on a copy of the model, one row in a pass."""
    own = copy.deepcopy(model).eval()
    weights = list(trainable_parameters(own).values())
    train, _, batches = halves(split, user, HOW)
    for batch in batches:
        rows = losses_of(own, split, user, train[batch])
        mean = sum(loss / max(1, targets) for loss, targets in rows) / len(batch)
        for weight, slope in zip(weights, torch.autograd.grad(mean, weights), strict=True):
            weight.data -= rate * slope
    return mean_loss(own, split, user)


def personalized(folder, *, lora):
    store = toy_store(folder, cycles(30), held_out=0.5)
    split, model = store.split(Split.HELD_OUT_USERS), toy_model(store)
    if lora:
        model = choose_trained(model, TrainConfig(lora_rank=2))
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, 0, 0.1, torch.Generator().manual_seed(1))
    users = np.flatnonzero(split.counts >= 2)[:6]
    expected = [[oracle(model, split, user, rate) for user in users] for rate in HOW.learning_rate]
    before = [mean_loss(model.eval(), split, user) for user in users]
    return personalize(model, split, users, HOW), np.array(before), np.array(expected)


@pytest.mark.parametrize("lora", fast_then_slow([False, True]), ids=["all weights", "adapters"])
def test_each_users_model_is_what_sgd_on_a_copy_of_the_weights_makes(tmp_path, lora):
    (found_before, found_after, _), before, after = personalized(tmp_path, lora=lora)
    assert np.abs(found_before - before).max() < 1e-5
    assert np.abs(found_after - after).max() < 1e-5
    assert np.abs(found_after - before).max() > 0.01
    assert np.abs(found_after[0] - found_after[1]).max() > 0.01


HELD_OUT = ["held-out-users"]


@pytest.mark.parametrize("adapters", fast_then_slow([True, False]))
def test_a_loops_run_is_compared_with_the_very_model_that_it_began_from(
    store, base, tmp_path, adapters
):
    run = tmp_path / "run"
    trained(adapted(loaded(base)) if adapters else loaded(base), store, run)
    (measured,) = evaluate_splits(run, store, HELD_OUT)
    expected, _ = evaluate(read_model(str(base)), store, "held-out-users")
    assert measured["base"]["loss"] == expected["loss"] != measured["model"]["loss"]
    assert stat.S_IMODE((run / "resume.json").stat().st_mode) == 0o600
    if adapters:  # without a merged model they are measured over their base
        shutil.rmtree(run / "model")
        (apart,) = evaluate_splits(run, store, HELD_OUT)
        assert apart["base"] == measured["base"]
        assert apart["model"]["loss"] == pytest.approx(measured["model"]["loss"], abs=1e-5)


@pytest.mark.parametrize(
    ("base_is", "message"),
    fast_then_slow(
        [
            ("changed after it was loaded", "does not hold the weights"),
            ("made in memory", "made in memory"),
            ("exchanged later", "does not hold the weights"),
        ]
    ),
)
def test_invariant_13_no_other_model_is_compared_with_it_is_refused(
    store, base, tmp_path, base_is, message
):
    run, model = tmp_path / "run", loaded(base)
    if base_is == "changed after it was loaded":
        moved(model)
    trained(toy_model(store) if base_is == "made in memory" else model, store, run)
    if base_is == "exchanged later":
        save_model(moved(loaded(base)), base, tokenizer=store.tokenizer_path, lineage=Lineage())
    with pytest.raises(UseError, match=message) as caught:
        evaluate_splits(run, store, HELD_OUT)
    assert "--no-base" in caught.value.hint
    (measured,) = evaluate_splits(run, store, HELD_OUT, with_base=False)
    assert "base" not in measured


def test_nothing_is_charged_for_a_loss_of_held_out_users_where_there_are_none(tmp_path):
    store = toy_store(tmp_path, held_out=0.0)
    with pytest.raises(UseError, match="holds no users out"):
        release_evaluation(tmp_path, store, Split.HELD_OUT_USERS, epsilon=1.0)
    assert StoreLedger(store.path).history().lines[1:] == ()
