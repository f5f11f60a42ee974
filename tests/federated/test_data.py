"""Silos' items: where they come from, how they are spread and capped; and the models on them."""

import json

import numpy as np
import pytest
import torch
from scipy import stats

from tests.federated.plans import plan
from tests.federated.toys import images, items
from userdp.errors import UseError
from userdp.federated.accounting import Algorithm
from userdp.federated.data import SubjectItems, digits, split_items, spread
from userdp.federated.models import LeafCNN, build_model, weights_of
from userdp.federated.plan import ModelKind, ModelSpec
from userdp.federated.silo import Silo
from userdp.federated.text import (
    VOCABULARY,
    character_items,
    encode,
    read_leaf,
    read_texts,
)
from userdp.gradients import Units, get_engine


def test_the_cap_keeps_each_of_a_subjects_items_equally_often():
    data = items([5, 2, 1])
    seen = np.zeros(5)
    draw = np.random.default_rng(0)
    for _ in range(600):
        capped, dropped = data.capped(2, draw)
        assert (capped.counts.tolist(), dropped) == ([2, 2, 1], 3)
        for row in capped.rows[:2]:
            seen[np.flatnonzero((data.rows[:5] == row).all(1))[0]] += 1
    assert stats.chisquare(seen).pvalue > 1e-4


@pytest.mark.parametrize("alpha", [None, 2.0])
def test_each_subjects_items_are_spread_uniformly_or_by_the_power_law_in_its_own_order(alpha):
    data = items([4000] * 40)
    parts = spread(data, 8, np.random.default_rng(1), alpha=alpha)
    assert sum(part.items for part in parts) == data.items
    found = np.stack([part.counts for part in parts])  # (silos, subjects)
    shares = np.diff(np.linspace(0, 1, 9) ** (alpha or 1.0))
    assert (abs(np.sort(found, axis=0) - 4000 * shares[:, None]) < 5 * np.sqrt(4000 / 8) + 5).all()
    homes = np.bincount(found.argmax(axis=0), minlength=8)
    assert homes.max() < 20  # no silo is home to most


def test_the_largest_group_grows_with_alpha_while_silos_stay_alike():
    """One order of the silos for all, the other reading of the paper, fails both."""
    data = items([100] * 400)
    draw = np.random.default_rng(1)

    def largest(parts):
        batches = [part.subjects[draw.permutation(part.items)[:64]] for part in parts]
        return np.mean([np.bincount(batch).max() for batch in batches])

    even, uneven = (spread(data, 8, draw, alpha=alpha) for alpha in (None, 16.0))
    sizes = [part.items for part in uneven]
    assert max(sizes) < 2 * min(sizes)
    assert largest(uneven) > largest(even) + 0.5


def test_subjects_are_numbered_afresh_in_every_silo():
    for part in spread(items([3] * 30), 4, np.random.default_rng(0)):
        assert (np.unique(part.subjects) == np.arange(len(part.counts))).all()


def test_a_split_is_by_item_and_loses_nothing():
    data = items([6] * 200)
    train, held = split_items(data, np.random.default_rng(0))
    assert train.items + held.items == data.items
    assert abs(held.items - 240) < 60
    for bad in (0.0, 1.0, float("nan")):
        with pytest.raises(UseError):
            split_items(data, np.random.default_rng(0), held_out=bad)


def test_made_up_hands_are_the_same_each_time_and_differ_between_subjects():
    pytest.importorskip("sklearn", reason="the extra `federated` is not installed")
    one, again = (digits(subjects=4, items_per_subject=5, seed=3) for _ in range(2))
    assert (one.rows == again.rows).all()
    assert one.rows[:, :64].min() >= 0
    assert one.rows[:, :64].max() <= 255
    assert set(one.rows[:, 64]) <= set(range(10))
    assert len(one.counts) == 4


def test_leaf_files_become_items(tmp_path):
    text = {"users": ["A"], "user_data": {"A": {"x": ["ab", "bc"], "y": ["c", "d"]}}}
    (tmp_path / "text.json").write_text(json.dumps(text))
    found = read_leaf([tmp_path / "text.json"])
    assert found.rows.tolist() == [encode("abc"), encode("bcd")]
    pixels = {"user_data": {"w": {"x": [[0, 1, 0.5, 0]], "y": [61]}, "v": {"x": [], "y": []}}}
    (tmp_path / "image.json").write_text(json.dumps(pixels))
    assert read_leaf([tmp_path / "image.json"]).rows.tolist() == [[0, 255, 128, 0, 61]]
    for broken in ("{}", "[", '{"user_data": {"a": {"x": ["ab"]}}}'):
        (tmp_path / "bad.json").write_text(broken)
        with pytest.raises(UseError, match="LEAF"):
            read_leaf([tmp_path / "bad.json"])
    with pytest.raises(UseError, match="different sizes"):
        read_leaf([tmp_path / "text.json", tmp_path / "image.json"])


def test_texts_become_items_of_their_users_alone(tmp_path):
    path = tmp_path / "t.jsonl"
    lines = [{"user": "b", "text": "abcd"}, {"user": "a", "text": "x"}, {"user": "b", "text": "e"}]
    path.write_text("\n".join(map(json.dumps, lines)))
    found = character_items(read_texts(path), seq_len=3)
    texts = [row[:length].tolist() for row, length in zip(found.rows, found.lengths, strict=True)]
    assert texts == [encode("abcd"), encode("d\ne\n"), encode("x\n")]
    assert found.subjects.tolist() == [0, 0, 1]
    assert encode("é☃") == [0, 0]
    for broken in ("x", '{"user": 3, "text": "a"}', '{"text": "a"}'):
        path.write_text(broken)
        with pytest.raises(UseError):
            character_items(read_texts(path), seq_len=3)


@pytest.mark.parametrize(
    "change",
    [
        {"subjects": np.array([1, 1])},
        {"subjects": np.array([0, 2])},
        {"lengths": np.array([3])},
        {"rows": np.zeros((2, 3))},
    ],
)
def test_items_that_do_not_fit_together_are_refused(change):
    fields = {
        "rows": np.zeros((2, 3), dtype=np.int64),
        "lengths": np.full(2, 3, dtype=np.int64),
        "subjects": np.array([0, 1]),
    }
    with pytest.raises(UseError):
        SubjectItems(**(fields | change))


def test_the_network_is_leafs_at_leafs_size():
    """Caldas et al. 2018: 32 and 64 channels of 5 x 5, 2,048 hidden units, 62 classes."""
    with torch.device("meta"):
        model = LeafCNN(side=28, classes=62, width=32)
    sizes = [sum(p.numel() for p in part.parameters()) for part in model.children()]
    assert sizes == [832, 51264, 64 * 49 * 2048 + 2048, 2048 * 62 + 62]


def test_a_layer_of_patches_is_a_convolution():
    model = LeafCNN(side=8, classes=10, width=4)
    same = torch.nn.Conv2d(4, 8, 5, padding=2)
    with torch.no_grad():
        same.weight.copy_(model.second.linear.weight.view(8, 4, 5, 5))
        same.bias.copy_(model.second.linear.bias)
        x = torch.rand(3, 4, 8, 8)
        assert torch.allclose(same(x), model.second(x), atol=1e-5)


LSTM = ModelSpec(kind=ModelKind.LSTM, width=6, inputs=VOCABULARY, outputs=VOCABULARY)


def texts():
    lines = [(f"u{i}", "To be, or not to be: that is the question."[i:]) for i in range(4)]
    return character_items(lines, seq_len=9)


@pytest.mark.parametrize(("spec", "data"), [(LSTM, texts()), (plan().model, images(6))])
def test_the_fast_engine_adds_up_what_the_reference_does(spec, data):
    model, loss = build_model(spec)
    units = Units(
        input_ids=torch.from_numpy(data.rows),
        lengths=torch.from_numpy(data.lengths),
        offsets=torch.arange(data.items + 1),
    )
    fast, slow = (
        get_engine(name)(model, loss, units, l2_clip_norm=0.3).value
        for name in ("auto", "reference")
    )
    for name, value in slow.items():
        assert torch.allclose(fast[name], value, rtol=1e-3, atol=1e-5)


def test_equal_specs_give_equal_weights_and_what_is_padded_does_not_count():
    one, two = (weights_of(build_model(LSTM)[0]) for _ in range(2))
    assert all((one[name] == two[name]).all() for name in one)
    model, loss = build_model(LSTM)
    row = torch.tensor([[5, 6, 7, 8]])
    other = torch.tensor([[5, 6, 7, 9]])
    three = torch.tensor([3])
    assert torch.equal(loss(model, row, three), loss(model, other, three))


@pytest.mark.slow
def test_adapters_of_a_language_model_train_across_silos(tmp_path):
    pytest.importorskip("peft", reason="the extra `lora` is not installed")
    from userdp.federated.tokens import token_items, vocabulary_size

    lines = [(f"u{i}", "Return the number of items in the list.") for i in range(3)]
    data, _ = token_items(lines, base="bundled", seq_len=8).capped(2, np.random.default_rng(0))
    spec = ModelSpec(
        kind=ModelKind.CAUSAL_LM,
        width=1,
        inputs=8,
        outputs=vocabulary_size("bundled"),
        base="bundled",
    )
    made = plan(algorithm=Algorithm.HIGRADAVG, model=spec, local_steps=1, sampling_probability=1.0)
    here = Silo(tmp_path, plan=made, index=0, data=data)
    start = weights_of(build_model(spec)[0])
    update = here.run_round(1, start)
    assert all("lora" in name for name in update)
    assert any(np.abs(part).max() > 0 for part in update.values())
