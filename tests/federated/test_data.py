"""Silos' items: how they are spread, what models they train, and what of them others may see."""

import numpy as np
import pytest
import torch.nn.functional as F

from papers import images as image_module
from tests.federated.toys import CNN, FACTS, NUMBERS, image, images, plan, store_of
from tests.speed import fast_then_slow
from userdp.core.errors import UseError
from userdp.data.records import Record
from userdp.data.splits import Split
from userdp.data.store_tokenizer import StoreTokenizer
from userdp.data.user_store import UserStore
from userdp.federated.algorithms import ALGORITHMS
from userdp.federated.federation_plan import PLAN_FILE, STORE, LanguageModel
from userdp.federated.silo import Silo, build_model, read_silo, weights_of
from userdp.federated.simulation import HELD_OUT, make_store, places, spread

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
    for most in (1, 2, 5):
        assert all(len(set(places(u, 200, silos=5, most=most, alpha=alpha))) <= most for u in USERS)


@pytest.mark.pitfall(number=40)
def test_invariant_11_where_a_subjects_items_lie_depends_on_that_subject_alone():
    data = images(12, seed=3)
    parts = spread(data, silos=3, most=3)
    assert sorted(r.text for part in parts for r in part) == sorted(r.text for r in data)
    for user in {record.user for record in data}:
        fewer = spread([r for r in data if r.user != user], silos=3, most=3)
        assert fewer == [[r for r in part if r.user != user] for part in parts]


def test_a_fifth_of_each_silos_items_is_held_out(tmp_path):
    records = [Record(b"s%d" % (n % 50), b"1 2 3") for n in range(1000)]
    make_store(records, tmp_path / "store", tokenizer=NUMBERS, seq_len=65)
    store = UserStore.open(tmp_path / "store")
    held, train = (store.split(s).counts.sum() for s in (Split.HELD_OUT_EXAMPLES, Split.TRAIN))
    assert held + train == 1000
    assert abs(held - HELD_OUT * 1000) < 60
    assert store.path.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    "spec",
    [
        {"model": "new", "layers": 1, "width": 8, "heads": 2},
        pytest.param({"model": "bundled", "lora_rank": 1}, marks=pytest.mark.slow),
    ],
    ids=["a new model", "adapters"],
)
def test_silos_of_text_train_language_models(tmp_path, spec):
    tokenizer = StoreTokenizer.load()
    facts = {"tokenizer_sha256": tokenizer.sha256, "vocab_size": tokenizer.vocab_size}
    model = LanguageModel(**facts, seq_len=8, **spec)
    lines = [b"Return the number of items.", b"Raise an error.", b"Print the list of names."]
    records = [Record(b"u%d" % (n % 3), lines[n % 3]) for n in range(12)]
    made = plan(algorithm="higradavg-dp", model=model, local_steps=1, sampling_probability=1.0)
    made.save(tmp_path / PLAN_FILE)
    make_store(records, tmp_path / STORE, tokenizer=tokenizer, seq_len=8)
    here = Silo(tmp_path, 0, *build_model(model))
    update = here.run_round(1, weights_of(build_model(model)[0]))
    moved = [name for name, part in update.items() if (part != 0).any()]
    if "lora_rank" in spec:
        assert moved
        assert all("lora" in name for name in update)
    else:
        assert moved == list(update)


# ------------------- what an item holds shows in nothing: its silo takes part, or it adds nothing


def spoilt(records):
    """One subject's images are of an unknown class, too short, too long, or no numbers."""
    draw = np.random.default_rng(1)
    bad = [image(10, draw), b"3: 7 7 7", b"what 1 2 3", b"255: 999 -1 7", b"9 " * 300]
    texts = iter(bad)
    return [Record(r.user, next(texts, bad[0])) if r.user == b"s002" else r for r in records]


def folder_of(tmp_path, records, made):
    """A silo's folder as the silo's own operator makes it."""
    folder = tmp_path / "silo"
    store_of(records, folder / STORE, made.model.seq_len)
    made.save(folder / PLAN_FILE)
    return folder


def answer(folder, made):
    """What others see of a silo: that it says hello and takes part, and the shapes it sends."""
    try:
        read_silo(folder, 0)
        here = Silo(folder, 0, *build_model(made.model))
        update = here.run_round(1, weights_of(build_model(made.model)[0]))
        here.close()
    except Exception as error:  # others would see a refusal, whatever its kind
        return f"refused: {type(error).__name__}"
    return {name: (array.shape, bool(np.isfinite(array).all())) for name, array in update.items()}


@pytest.mark.parametrize("algorithm", fast_then_slow(list(ALGORITHMS)))
def test_a_bad_label_shows_in_nothing_that_a_silo_answers(tmp_path, algorithm):
    data = images(6, seed=1, least=5)
    made = plan(algorithm=algorithm, sampling_probability=1.0, group_size=9)
    bad = folder_of(tmp_path / "spoilt", spoilt(data), made)
    clean = folder_of(tmp_path / "clean", [one for one in data if one.user != b"s002"], made)
    assert answer(bad, made) == answer(clean, made)
    assert not isinstance(answer(clean, made), str)


def test_broken_twin_a_loss_that_refuses_a_label_is_caught_by_its_refusal(tmp_path, monkeypatch):
    """Torch's own error of such a label would count its subject as zero, and show in nothing."""

    def refusing(model, rows, lengths):
        if int(rows[:, 0].max()) >= CNN.classes:
            raise UseError("a label that the model does not have")
        return F.cross_entropy(model(rows), rows[:, 0], reduction="none")

    monkeypatch.setattr(image_module, "image_loss", refusing)
    made = plan(sampling_probability=1.0, group_size=9)
    folder = folder_of(tmp_path, spoilt(images(6, seed=1, least=5)), made)
    assert str(answer(folder, made)).startswith("refused")


def test_a_store_made_for_another_model_is_refused_whoever_is_in_it(tmp_path):
    made = plan()
    folder = tmp_path / "silo"
    store_of(images(2), folder / STORE, 70)
    made.save(folder / PLAN_FILE)
    with pytest.raises(UseError, match="65 tokens"):
        read_silo(folder, 0)
    assert answer(folder, made) == "refused: UseError"
    other = LanguageModel(**FACTS | {"tokenizer_sha256": "0"}, seq_len=70)
    plan(model=other).save(folder / PLAN_FILE)
    with pytest.raises(UseError, match="another tokenizer"):
        read_silo(folder, 0)
