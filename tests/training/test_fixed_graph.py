"""Records of several owners: the claim is fixed-graph, and what cannot be claimed is refused."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from tests.data.corpora import ListSource
from tests.plans import els_plan, uls_plan
from tests.training.toy import private_run, sgd
from tests.words import write_tokenizer
from userdp.core.errors import UseError
from userdp.data.ownership import Owners
from userdp.data.prepare import prepare_store
from userdp.data.records import Record
from userdp.data.splits import SplitRule
from userdp.data.store import UserStore
from userdp.data.tokenize import StoreTokenizer
from userdp.gradients import get_engine
from userdp.plans import Plan
from userdp.training import steps as steps_module
from userdp.training.private import make_private

K = 2
GRAPH = [  # owners, holder first; ben owns one record that ana holds, and one of his own
    ("ana", "ben"),
    ("ana",),
    ("ben",),
    ("cid", "dora"),
    ("dora",),
    ("eva",),
]


def greedy(
    folder: Path, texts: list[str] | None = None, *, held_out: float = 0.0, **options
) -> UserStore:
    folder.mkdir()
    texts = texts or [f"w{n} w2 w3" for n in range(len(GRAPH))]
    records = tuple(
        Record(owners[0].encode(), text.encode(), n, owners=tuple(o.encode() for o in owners))
        for n, (owners, text) in enumerate(zip(GRAPH, texts, strict=True))
    )
    prepare_store(
        ListSource(records, several_owners=True),
        folder / "store",
        tokenizer=StoreTokenizer.load(write_tokenizer(folder / "tokenizer.json")),
        seq_len=8,
        held_out_users=0,
        held_out_examples=held_out,
        owners=Owners.GREEDY,
        records_per_user=K,
        **options,
    )
    return UserStore.open(folder / "store", fixed_graph=True)


def graph_plan(**changes) -> Plan:
    return els_plan(**{"group_size": K, "fixed_graph": True, **changes})


class Signed(nn.Module):
    """A row's gradient is far along +1 or -1, as its first token says."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, input_ids: Tensor) -> Tensor:
        sign = torch.where(input_ids[:, 0] % 2 == 0, 1.0, -1.0)
        return 100 * sign * self.weight


def signed_loss(model: nn.Module, input_ids: Tensor, lengths: Tensor) -> Tensor:
    losses: Tensor = model(input_ids)
    return losses


def first_sum(store: UserStore, plan: Plan, out: Path, monkeypatch) -> float:
    """The clipped sum of a run's first step, before its noise."""
    found = []
    honest = get_engine("reference")

    def watched(*arguments, **options):
        summed = honest(*arguments, **options)
        found.append(float(summed.value["weight"]))  # noise is added in place
        return summed

    monkeypatch.setattr(steps_module, "engine_of", lambda model, name: watched)
    model = Signed()
    run = private_run(model, sgd(model), store, plan, out=out, loss=signed_loss, engine="reference")
    with run as private:
        next(iter(private))
    return found[0]


def test_invariant_3_exchanging_one_owners_texts_moves_a_step_by_two_clips_each(
    tmp_path, monkeypatch
):
    """The adversarial pair: ben's K records, one of them held by ana, turn their gradients round.

    The sum moves by 2 C K: more than the C K of add-or-remove, and as much as fixed-graph prices.
    """
    plan = graph_plan(population=10, batch_size=10, l2_clip_norm=0.5)  # p = 1: all take part
    before = ["w0 w2", "w1 w2", "w0 w2", "w1 w2", "w1 w2", "w1 w2"]
    after = ["w1 w2", "w1 w2", "w1 w2", "w1 w2", "w1 w2", "w1 w2"]
    sums = []
    for name, texts in (("before", before), ("after", after)):
        store = greedy(tmp_path / name, texts)
        sums.append(first_sum(store, plan, tmp_path / f"{name}-run", monkeypatch))
    moved = abs(sums[0] - sums[1])
    allowed = 2 * K * plan.clip.l2_norm
    assert 0.99 * allowed < moved <= allowed
    assert moved > 1.9 * K * plan.clip.l2_norm  # the twin: add-or-remove would have priced this
    twice = moved / plan.noise_std  # what an attacker who knows all else can tell at p = 1
    true = _gaussian_delta(twice * math.sqrt(plan.steps), plan.guarantee().epsilon)
    assert true <= plan.budget.target_delta
    cheap = els_plan(**{"group_size": K, "population": 10, "batch_size": 10})
    twin = _gaussian_delta(twice * math.sqrt(plan.steps), cheap.guarantee().epsilon)
    assert twin > 100 * plan.budget.target_delta


def _gaussian_delta(mu: float, epsilon: float) -> float:
    near, far = stats.norm.cdf([mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu])
    return float(near - math.exp(epsilon) * far)


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (els_plan(group_size=K), "add-or-remove would be false"),
        (uls_plan(), "add-or-remove would be false"),
        (graph_plan(group_size=1), "group_size is 1"),
    ],
)
def test_plans_that_the_store_does_not_support_are_refused(tmp_path, plan, message):
    store = greedy(tmp_path / "s")
    for opened in (store, store.path):
        model = Signed()
        with pytest.raises(UseError, match=message):
            make_private(model, sgd(model), opened, plan, out=tmp_path / "r", loss=signed_loss)
    assert not (tmp_path / "r").exists()
    assert not (store.path / "ledger.jsonl").exists()


@pytest.mark.parametrize(
    "options", [{"held_out": 0.5}, {"split": SplitRule.FIRST_PART}], ids=["hash", "first part"]
)
def test_splits_by_the_number_of_usable_records_are_refused(tmp_path, options):
    store = greedy(tmp_path / "s", **options)
    model = Signed()
    with pytest.raises(UseError, match="move records of others"):
        make_private(model, sgd(model), store, graph_plan(), out=tmp_path / "r", loss=signed_loss)


def test_fixed_graph_over_records_of_one_owner_is_refused(store, tmp_path):
    model = Signed()
    with pytest.raises(UseError, match="fixed-graph adjacency, and each") as refused:
        make_private(model, sgd(model), store, graph_plan(), out=tmp_path / "r", loss=signed_loss)
    assert "one user" in str(refused.value)
