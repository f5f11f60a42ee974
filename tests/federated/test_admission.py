"""What an item holds never shows in what a silo answers: it takes part, or it adds nothing."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from papers import images as image_module
from tests.federated.plans import CNN, FACTS, plan
from tests.federated.toys import image, images, store_of
from tests.speed import fast_then_slow
from userdp.data.records import Record
from userdp.data.selection import fixed_selection
from userdp.data.splits import Split
from userdp.data.store import UserStore
from userdp.errors import UseError
from userdp.federated.algorithms import ALGORITHMS
from userdp.federated.models import build_model, weights_of
from userdp.federated.plan import PLAN_FILE, STORE, LanguageModel
from userdp.federated.silo import Silo, read_silo

WORDS = LanguageModel(model="new", layers=1, width=8, heads=2, seq_len=12, **FACTS)


def spoilt(records, user=b"s002"):
    """One subject's images are of an unknown class, too short, too long, or no numbers."""
    draw = np.random.default_rng(1)
    bad = [image(10, draw), b"3: 7 7 7", b"what 1 2 3", b"255: 999 -1 7", b"9 " * 300]
    texts = iter(bad)
    return [Record(user, next(texts, bad[0]), r.order) if r.user == user else r for r in records]


def without(records, user=b"s002"):
    return [record for record in records if record.user != user]


def folder_of(tmp_path, records, made):
    """A silo's folder as the silo's own operator makes it."""
    folder = tmp_path / "silo"
    folder.mkdir(parents=True)
    made.save(folder / PLAN_FILE)
    store_of(records, folder / STORE, made.model.seq_len)
    return folder


def answer(folder, made):
    """What others see of a silo: that it says hello and takes part, and the shapes it sends."""
    try:
        read_silo(folder, 0)
        here = Silo(folder, 0)
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
    clean = folder_of(tmp_path / "clean", without(data), made)
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


def test_an_item_of_an_unknown_class_adds_nothing():
    network, loss = build_model(CNN)
    rows = torch.randint(0, 256, (3, 65), generator=torch.Generator().manual_seed(0))
    rows[:, 0] = torch.tensor([10, 255, 256])
    losses = loss(network, rows, torch.full((3,), 65))
    assert losses.tolist() == [0, 0, 0]
    gradients = torch.autograd.grad(losses.sum(), list(network.parameters()))
    assert all((gradient == 0).all() for gradient in gradients)


def test_a_subject_over_the_cap_shows_in_nothing_that_a_silo_answers(tmp_path):
    made = plan(sampling_probability=1.0)
    folder = folder_of(tmp_path, images(8, seed=3, least=5), made)
    assert UserStore.open(folder / STORE).split(Split.TRAIN).counts.min() > 3
    assert not isinstance(answer(folder, made), str)


def test_a_silo_of_which_nothing_can_be_read_goes_on_with_noise_alone(tmp_path):
    draw = np.random.default_rng(0)
    nothing = [Record(b"a", image(77, draw), order) for order in range(3)]
    made = plan(sampling_probability=1.0)
    assert not isinstance(answer(folder_of(tmp_path, nothing, made), made), str)


def kept_items(folder, records, group_size=2):
    """The items of a silo that can train, as bytes, by subject."""
    store_of(records, folder, 65)
    store = UserStore.open(folder)
    split = store.split(Split.TRAIN)
    counts, selection = fixed_selection(split, group_size)
    users = np.repeat(np.arange(len(counts)), counts)
    chosen = selection.map(users, np.concatenate([np.arange(count) for count in counts]))
    rows = split.gather(users, chosen)
    ids = [store.user_ids()[split.rows[user]] for user in users]
    return {(who, rows.row(place).tobytes()) for place, who in enumerate(ids)}


def test_whether_an_item_takes_part_depends_on_its_own_subject_alone(tmp_path):
    data = images(6, seed=1)
    kept = kept_items(tmp_path / "all", data)
    for user in {record.user for record in data}:
        fewer = kept_items(tmp_path / user.decode(), without(data, user))
        assert fewer == {item for item in kept if item[0] != user}


def test_broken_twin_a_cap_that_counts_across_subjects_is_caught():
    """The first items of the data in place of each subject's: who else is there decides."""
    data = images(4, seed=2)
    first, fewer = data[:2], without(data, b"s000")[:2]
    assert fewer != without(first, b"s000")


def test_text_of_any_kind_takes_part(tmp_path):
    """Every text has tokens that the model knows, since its tokenizer is the model's own."""
    texts = [b"1 2 3", b"\xf0\x9f\x99\x82 4", b"300 -7", b"1 " * 50]
    records = [Record(b"a", text, order) for order, text in enumerate(texts)]
    made = plan(model=WORDS, sampling_probability=1.0)
    assert not isinstance(answer(folder_of(tmp_path, records, made), made), str)


def test_a_store_made_for_another_model_is_refused_whoever_is_in_it(tmp_path):
    made = plan()
    folder = tmp_path / "silo"
    folder.mkdir()
    made.save(folder / PLAN_FILE)
    store_of(images(2), folder / STORE, 70)
    with pytest.raises(UseError, match="65 tokens"):
        read_silo(folder, 0)
    assert answer(folder, made) == "refused: UseError"
    plan(model=LanguageModel(**FACTS | {"tokenizer_sha256": "0"}, seq_len=70)).save(
        folder / PLAN_FILE
    )
    with pytest.raises(UseError, match="another tokenizer"):
        read_silo(folder, 0)
