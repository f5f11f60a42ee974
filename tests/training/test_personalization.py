"""Each user's own model is what plain SGD makes of it, and nobody's knows another's text."""

import copy

import numpy as np
import pytest
import torch

from tests.speed import fast_then_slow
from tests.training.toy import cycles, toy_model, toy_store
from userdp.data.splits import Split
from userdp.gradients import trainable_parameters
from userdp.training.config import TrainConfig
from userdp.training.lora import add_adapters
from userdp.training.personalization import LocalTraining, halves, personalize

HOW = LocalTraining(learning_rate=(0.3, 0.05), epochs=4, batch_size=2)


def losses_of(model, split, user, examples):
    """Each example's summed loss and targets, one row in a pass."""
    for example in examples:
        row = torch.tensor(split.gather([user], [example]).row(0).astype(np.int64))
        logits = model(input_ids=row[None], use_cache=False).logits[0, :-1]
        loss = torch.nn.functional.cross_entropy(logits, row[1:], reduction="sum")
        yield loss, len(row) - 1


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


def adapted(folder, *, lora):
    store = toy_store(folder, cycles(30), held_out=0.5)
    split, model = store.split(Split.HELD_OUT_USERS), toy_model(store)
    if lora:
        model = add_adapters(model, TrainConfig(lora_rank=2))
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, 0, 0.1, torch.Generator().manual_seed(1))
    users = np.flatnonzero(split.counts >= 2)[:6]
    expected = [[oracle(model, split, user, rate) for user in users] for rate in HOW.learning_rate]
    before = [mean_loss(model.eval(), split, user) for user in users]
    return personalize(model, split, users, HOW), np.array(before), np.array(expected)


@pytest.mark.parametrize("lora", fast_then_slow([False, True]), ids=["all weights", "adapters"])
def test_each_users_model_is_what_sgd_on_a_copy_of_the_weights_makes(tmp_path, lora):
    found, before, after = adapted(tmp_path, lora=lora)
    assert np.abs(found.before - before).max() < 1e-5
    assert np.abs(found.after - after).max() < 1e-5
    assert np.abs(found.after - before).max() > 0.01
    assert np.abs(found.after[0] - found.after[1]).max() > 0.01
