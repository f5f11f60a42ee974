"""Silos' items: where they come from, how they are spread and capped; and the models on them."""

import json
from collections import Counter

import numpy as np
import pytest
import torch

from papers.images import ImageNetwork, digits
from tests.federated.characters import CHARACTERS, CharacterLSTM, character_tokenizer
from tests.federated.plans import CNN, NUMBERS, plan
from tests.federated.toys import images
from userdp.data.progress import NoProgress
from userdp.data.records import Record, Tally
from userdp.data.sources import open_source
from userdp.data.splits import Split
from userdp.data.store import UserStore
from userdp.data.tokenize import StoreTokenizer
from userdp.errors import UseError
from userdp.federated.data import HELD_OUT, make_store, places, spread
from userdp.federated.models import build_model, weights_of
from userdp.federated.plan import PLAN_FILE, STORE, LanguageModel
from userdp.federated.silo import Silo
from userdp.federated.simulation import all_units
from userdp.gradients import Units, get_engine

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


def test_the_largest_group_grows_with_alpha_while_silos_stay_alike():
    """One order of the silos for all, the other reading of the paper, fails both."""
    draw, owners = np.random.default_rng(1), np.repeat(np.arange(400), 100)

    def silos(alpha):
        where = np.concatenate(
            [places(f"{n}".encode(), 100, silos=8, most=8, alpha=alpha) for n in range(400)]
        )
        return [owners[where == silo] for silo in range(8)]

    def largest(parts):
        batches = [part[draw.permutation(len(part))[:64]] for part in parts]
        return np.mean([np.bincount(batch).max() for batch in batches])

    even, uneven = silos(None), silos(16.0)
    sizes = [len(part) for part in uneven]
    assert max(sizes) < 2 * min(sizes)
    assert largest(uneven) > largest(even) + 0.5


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


def test_broken_twin_one_stream_of_coins_moves_other_peoples_items():
    data = images(12, seed=3)

    def streamed(records):
        coins = np.random.default_rng(0).integers(3, size=len(records))
        return {record.order: coin for record, coin in zip(records, coins, strict=True)}

    everybody, fewer = streamed(data), streamed([r for r in data if r.user != b"s000"])
    assert any(everybody[order] != coin for order, coin in fewer.items())


def test_a_silo_without_subjects_is_refused():
    with pytest.raises(UseError, match="has no subjects"):
        spread(images(1)[:2], silos=3, most=3)


def test_a_fifth_of_each_silos_items_is_held_out(tmp_path):
    records = [Record(b"s%d" % (n % 50), b"1 2 3", n) for n in range(1000)]
    make_store(records, tmp_path / "store", tokenizer=NUMBERS, seq_len=65)
    store = UserStore.open(tmp_path / "store")
    held, train = (store.split(s).counts.sum() for s in (Split.HELD_OUT_EXAMPLES, Split.TRAIN))
    assert held + train == 1000
    assert abs(held - HELD_OUT * 1000) < 60
    assert store.path.stat().st_mode & 0o777 == 0o700


def test_made_up_hands_are_the_same_each_time_and_differ_between_subjects():
    pytest.importorskip("sklearn", reason="the extra `federated` is not installed")
    one, again = (digits(subjects=4, items_per_subject=5, seed=3) for _ in range(2))
    assert one == again
    rows = np.array([record.text.replace(b":", b"").split() for record in one], dtype=int)
    assert rows[:, 1:].min() >= 0
    assert rows[:, 1:].max() <= 255
    assert set(rows[:, 0]) <= set(range(10))
    assert len({record.user for record in one}) == 4


def test_leafs_images_become_integer_tokens(tmp_path):
    pixels = {"user_data": {"w": {"x": [[0, 1, 0.5, 0]] * 9, "y": [61] * 9}}}
    (tmp_path / "image.json").write_text(json.dumps(pixels))
    source = open_source([str(tmp_path / "image.json")])
    records = list(source.records(Tally(), NoProgress()))
    make_store(records, tmp_path / "store", tokenizer=NUMBERS, seq_len=5)
    units = all_units(UserStore.open(tmp_path / "store").split(Split.TRAIN))
    assert {tuple(row) for row in units.input_ids.tolist()} == {(61, 0, 255, 128, 0)}


def test_numbers_that_are_none_are_one_token():
    tokens = NUMBERS.encode(["12: 255 0", "256 x -1 1.5"])
    assert tokens == [[12, 255, 0], [256] * 4]


def test_characters_are_tokens():
    (tokens,) = character_tokenizer().encode([" a\né☃"])
    assert tokens == [CHARACTERS.index(c) + 1 for c in " a\n"] + [0, 0]


def test_the_network_is_leafs_at_leafs_size():
    """Caldas et al. 2018: 32 and 64 channels of 5 x 5, 2,048 hidden units, 62 classes."""
    with torch.device("meta"):
        model = ImageNetwork(side=28, classes=62, width=32)
    sizes = [sum(p.numel() for p in part.parameters()) for part in model.children()]
    assert sizes == [832, 51264, 64 * 49 * 2048 + 2048, 2048 * 62 + 62]


CHARACTER_TOKENIZER = character_tokenizer()
LSTM = CharacterLSTM(
    width=6,
    seq_len=10,
    tokenizer_sha256=CHARACTER_TOKENIZER.sha256,
    vocab_size=CHARACTER_TOKENIZER.vocab_size,
)


def units_of(texts, tokenizer):
    rows = tokenizer.encode(texts)
    return Units.from_rows([[row] for row in rows])


TEXTS = ["To be, or ", "not to be:", "that", "is the que"]


@pytest.mark.parametrize(
    ("spec", "units"),
    [
        (LSTM, units_of(TEXTS, CHARACTER_TOKENIZER)),
        (CNN, units_of([r.text.decode() for r in images(3)], NUMBERS)),
    ],
)
def test_the_fast_engine_adds_up_what_the_reference_does(spec, units):
    model, loss = build_model(spec)
    fast, slow = (
        get_engine(name)(model, loss, units, l2_clip_norm=0.3).value
        for name in ("auto", "reference")
    )
    for name, value in slow.items():
        assert torch.allclose(fast[name], value, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("spec", [CNN, LSTM])
def test_equal_specs_give_equal_weights_and_what_is_padded_does_not_count(spec):
    one, two = (weights_of(build_model(spec)[0]) for _ in range(2))
    assert all((one[name] == two[name]).all() for name in one)
    model, loss = build_model(spec)
    row = torch.tensor([[5, 6, 7, 8]])
    other = torch.tensor([[5, 6, 7, 9]])
    three = torch.tensor([3])
    assert torch.equal(loss(model, row, three), loss(model, other, three))


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


def test_a_model_that_cannot_read_the_stores_tokens_is_refused(tmp_path):
    other = character_tokenizer()
    spec = LanguageModel(
        tokenizer_sha256=other.sha256, vocab_size=other.vocab_size, seq_len=8, model="bundled"
    )
    plan(model=spec).save(tmp_path / PLAN_FILE)
    make_store([Record(b"a", b"to be", 0)], tmp_path / STORE, tokenizer=other, seq_len=8)
    with pytest.raises(UseError, match="different tokenizers"):
        Silo(tmp_path, 0)


@pytest.mark.slow
def test_adapters_of_a_language_model_train_across_silos(tmp_path):
    pytest.importorskip("peft", reason="the extra `lora` is not installed")
    update = language_silo(tmp_path, model="bundled", lora_rank=1)
    assert all("lora" in name for name in update)
    assert any(np.abs(part).max() > 0 for part in update.values())
