"""Records of several owners: the claim is fixed-graph, and what cannot be claimed is refused."""

import math

import pytest
import torch
from scipy import stats
from torch import nn

from tests.data.corpora import ListSource
from tests.plans import els_plan, uls_plan
from tests.training.toy import private_run, sgd, store_of
from userdp.core.errors import UseError
from userdp.data.records import Record
from userdp.data.splits import SplitRule
from userdp.gradients import get_engine
from userdp.training import step_mechanism as steps_module
from userdp.training.private_run import make_private

K = 2
# Owners, holder first; ben owns one record that ana holds, and one of his own.
GRAPH = [("ana", "ben"), ("ana",), ("ben",), ("cid", "dora"), ("dora",), ("eva",)]
TEXTS = [f"w{n} w2 w3" for n in range(len(GRAPH))]


def greedy(folder, texts=TEXTS, *, held_out=0.0, **options):
    records = tuple(
        Record(owners[0].encode(), text.encode(), owners=tuple(o.encode() for o in owners))
        for n, (owners, text) in enumerate(zip(GRAPH, texts, strict=True))
    )
    options |= {"records_per_user": K, "held_out_users": 0, "held_out_examples": held_out}
    return store_of(folder, ListSource(records, several_owners=True), **options)


def graph_plan(**changes):
    return els_plan(**{"group_size": K, "fixed_graph": True, **changes})


class Signed(nn.Module):
    """A row's gradient is far along +1 or -1, as its first token says."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, input_ids):
        return 100 * torch.where(input_ids[:, 0] % 2 == 0, 1.0, -1.0) * self.weight


def signed_loss(model, input_ids, lengths):
    return model(input_ids)


def first_sum(store, plan, out, monkeypatch):
    """The clipped sum of a run's first step, before its noise."""
    found, honest, model = [], get_engine("reference"), Signed()

    def watched(*arguments, **options):
        summed = honest(*arguments, **options)
        found.append(float(summed.value["weight"]))  # noise is added in place
        return summed

    monkeypatch.setattr(steps_module, "get_engine", lambda name: watched)
    how = {"out": out, "loss": signed_loss, "engine": "reference"}
    with private_run(model, sgd(model), store, plan, **how) as private:
        next(iter(private))
    return found[0]


def gaussian_delta(mu, epsilon):
    near, far = stats.norm.cdf([mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu])
    return float(near - math.exp(epsilon) * far)


def test_invariant_3_exchanging_one_owners_texts_moves_a_step_by_two_clips_each(
    tmp_path, monkeypatch
):
    """The adversarial pair: ben's K records, one of them held by ana, turn their gradients round.

    The sum moves by 2 C K: more than the C K of add-or-remove, and as much as fixed-graph prices.
    """
    everybody = {"population": 10, "batch_size": 10}  # p = 1: all take part
    plan, sums = graph_plan(**everybody, l2_clip_norm=0.5), []
    for name, firsts in (("before", "010111"), ("after", "111111")):
        store = greedy(tmp_path / name, [f"w{first} w2" for first in firsts])
        sums.append(first_sum(store, plan, tmp_path / f"{name}-run", monkeypatch))
    moved, allowed = abs(sums[0] - sums[1]), 2 * K * plan.clip.l2_norm
    assert 0.99 * allowed < moved <= allowed
    # What an attacker who knows all else can tell at p = 1. The twin is add-or-remove's price.
    mu, delta = moved / plan.noise_std * math.sqrt(plan.steps), plan.budget.target_delta
    assert gaussian_delta(mu, plan.guarantee().epsilon) <= delta
    assert gaussian_delta(mu, els_plan(group_size=K, **everybody).guarantee().epsilon) > 100 * delta


@pytest.mark.parametrize(
    ("plan", "options", "message"),
    [
        (els_plan(group_size=K), {}, "add-or-remove would be false"),
        (uls_plan(), {}, "add-or-remove would be false"),
        (graph_plan(group_size=1), {}, "group_size is 1"),
        (graph_plan(), {"held_out": 0.5}, "move records of others"),
        (graph_plan(), {"split": SplitRule.FIRST_PART}, "move records of others"),
    ],
)
def test_plans_and_splits_that_the_store_does_not_support_are_refused(
    tmp_path, plan, options, message
):
    store = greedy(tmp_path / "s", **options)
    for opened in (store, store.path):
        model = Signed()
        with pytest.raises(UseError, match=message):
            make_private(model, sgd(model), opened, plan, out=tmp_path / "r", loss=signed_loss)
    assert not (tmp_path / "r").exists()
    assert not (store.path / "ledger.jsonl").exists()
