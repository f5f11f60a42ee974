"""Silos' items: how they are spread, and for which model they are prepared."""

import numpy as np
import pytest

from tests.federated.toys import FACTS, WIDTH, items, plan, store_of
from userdp.core.errors import UseError
from userdp.federated.federation_plan import PLAN_FILE, RUN, STORE, LanguageModel
from userdp.federated.silo import build_model, read_silo, weights_of
from userdp.federated.simulation import places, spread

USERS = [f"user {number}".encode() for number in range(40)]


@pytest.mark.parametrize("alpha", [None, 2.0])
def test_each_subjects_items_are_spread_uniformly_or_by_the_power_law_in_its_own_order(alpha):
    found = np.stack(
        [np.bincount(places(u, 4000, silos=8, most=8, alpha=alpha), minlength=8) for u in USERS]
    )  # (subjects, silos)
    shares = np.diff(np.linspace(0, 1, 9) ** (alpha or 1.0))
    assert (abs(np.sort(found, axis=1) - 4000 * shares) < 5 * np.sqrt(4000 / 8) + 5).all()
    assert np.bincount(found.argmax(axis=1), minlength=8).max() < 20  # no silo is home to most
    for most in (1, 2, 5):
        assert all(len(set(places(u, 200, silos=5, most=most, alpha=alpha))) <= most for u in USERS)


@pytest.mark.pitfall(number=40)
def test_invariant_11_where_a_subjects_items_lie_depends_on_that_subject_alone():
    data = items([9, 1, 4, 7] * 3).records()
    parts = spread(data, silos=3, most=3)
    assert sorted(r.text for part in parts for r in part) == sorted(r.text for r in data)
    for user in {record.user for record in data}:
        fewer = spread([r for r in data if r.user != user], silos=3, most=3)
        assert fewer == [[r for r in part if r.user != user] for part in parts]


def test_of_a_model_with_adapters_only_these_are_sent():
    spec = LanguageModel(model="new", layers=1, width=8, heads=2, lora_rank=1, **FACTS)
    assert all("lora" in name for name in weights_of(build_model(spec)[0]))


def test_a_store_made_for_another_model_is_refused_whoever_is_in_it(tmp_path):
    store_of(items([2]).records(), tmp_path / STORE, 70)
    plan().save(tmp_path / PLAN_FILE)
    with pytest.raises(UseError, match=f"{WIDTH} tokens"):
        read_silo(tmp_path, 0)
    other = LanguageModel(**FACTS | {"tokenizer_sha256": "0"}, seq_len=70)
    plan(model=other).save(tmp_path / PLAN_FILE)
    with pytest.raises(UseError, match="another tokenizer"):
        read_silo(tmp_path, 0)
    plan(model=LanguageModel(**FACTS, seq_len=70)).save(tmp_path / PLAN_FILE)
    (tmp_path / RUN).mkdir()
    (tmp_path / RUN / "ledger.jsonl").touch()  # as a kill leaves it
    assert read_silo(tmp_path, 0).model.seq_len == 70
