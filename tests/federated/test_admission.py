"""What an item holds never shows in what a silo answers: it takes part, or it adds nothing."""

import numpy as np
import pytest
import torch.nn.functional as F

from papers import images as image_module
from tests.federated.plans import CNN, FACTS, plan
from tests.federated.toys import image, images, store_of
from tests.speed import fast_then_slow
from userdp.core.errors import UseError
from userdp.data.records import Record
from userdp.data.splits import Split
from userdp.data.store import UserStore
from userdp.federated.algorithms import ALGORITHMS
from userdp.federated.models import build_model, weights_of
from userdp.federated.plan import PLAN_FILE, STORE, LanguageModel
from userdp.federated.silo import Silo, read_silo


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


def test_a_subject_over_the_cap_shows_in_nothing_that_a_silo_answers(tmp_path):
    made = plan(sampling_probability=1.0)
    folder = folder_of(tmp_path, images(8, seed=3, least=5), made)
    assert UserStore.open(folder / STORE).split(Split.TRAIN).counts.min() > 3
    assert not isinstance(answer(folder, made), str)


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
