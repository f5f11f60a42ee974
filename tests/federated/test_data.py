"""Silos' items: where they come from, how they are spread and capped; and the models on them."""

from collections import Counter

import numpy as np
import pytest

from tests.federated.plans import NUMBERS, plan
from tests.federated.toys import images
from userdp.data.records import Record
from userdp.data.splits import Split
from userdp.data.store import UserStore
from userdp.data.tokenize import StoreTokenizer
from userdp.federated.data import HELD_OUT, make_store, places, spread
from userdp.federated.models import build_model, weights_of
from userdp.federated.plan import PLAN_FILE, STORE, LanguageModel
from userdp.federated.silo import Silo

USERS = [f"user {number}".encode() for number in range(40)]


@pytest.mark.parametrize("alpha", [None, 2.0])
def test_each_subjects_items_are_spread_uniformly_or_by_the_power_law_in_its_own_order(alpha):
    found = np.stack(
        [np.bincount(places(u, 4000, silos=8, most=8, alpha=alpha), minlength=8) for u in USERS]
    )  # (subjects, silos)
    shares = np.diff(np.linspace(0, 1, 9) ** (alpha or 1.0))
    assert (abs(np.sort(found, axis=1) - 4000 * shares) < 5 * np.sqrt(4000 / 8) + 5).all()
    homes = np.bincount(found.argmax(axis=1), minlength=8)
    assert homes.max() < 20  # no silo is home to most


@pytest.mark.parametrize("most", [1, 2, 5])
def test_no_subject_lies_in_more_silos_than_declared(most):
    for user in USERS:
        assert len(set(places(user, 200, silos=5, most=most, alpha=None))) == most


def test_invariant_11_where_a_subjects_items_lie_depends_on_that_subject_alone():
    data = images(12, seed=3)
    parts = spread(data, silos=3, most=3)
    assert sorted(r.order for part in parts for r in part) == sorted(r.order for r in data)
    for user in {record.user for record in data}:
        fewer = spread([r for r in data if r.user != user], silos=3, most=3)
        assert fewer == [[r for r in part if r.user != user] for part in parts]


def test_a_fifth_of_each_silos_items_is_held_out(tmp_path):
    records = [Record(b"s%d" % (n % 50), b"1 2 3", n) for n in range(1000)]
    make_store(records, tmp_path / "store", tokenizer=NUMBERS, seq_len=65)
    store = UserStore.open(tmp_path / "store")
    held, train = (store.split(s).counts.sum() for s in (Split.HELD_OUT_EXAMPLES, Split.TRAIN))
    assert held + train == 1000
    assert abs(held - HELD_OUT * 1000) < 60
    assert store.path.stat().st_mode & 0o777 == 0o700


def language_silo(tmp_path, **changes):
    """A silo of text, with a language model as ``userdp train`` has them."""
    tokenizer = StoreTokenizer.load()
    spec = LanguageModel(
        tokenizer_sha256=tokenizer.sha256, vocab_size=tokenizer.vocab_size, seq_len=8, **changes
    )
    lines = [b"Return the number of items.", b"Raise an error.", b"Print the list of names."]
    records = [Record(b"u%d" % (n % 3), lines[n % 3], n) for n in range(12)]
    made = plan(algorithm="higradavg-dp", model=spec, local_steps=1, sampling_probability=1.0)
    made.save(tmp_path / PLAN_FILE)
    make_store(records, tmp_path / STORE, tokenizer=tokenizer, seq_len=8)
    here = Silo(tmp_path, 0)
    return here.run_round(1, weights_of(build_model(spec)[0]))


def test_silos_of_text_train_a_new_language_model(tmp_path):
    update = language_silo(tmp_path, model="new", layers=1, width=8, heads=2)
    assert "transformer.wte.weight" in update
    assert Counter(bool((part != 0).any()) for part in update.values())[True] == len(update)


@pytest.mark.slow
def test_adapters_of_a_language_model_train_across_silos(tmp_path):
    pytest.importorskip("peft", reason="the extra `lora` is not installed")
    update = language_silo(tmp_path, model="bundled", lora_rank=1)
    assert all("lora" in name for name in update)
    assert any(np.abs(part).max() > 0 for part in update.values())
