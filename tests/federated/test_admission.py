"""What an item holds never shows in what a silo answers: it takes part, or it counts as absent."""

import json
import stat

import numpy as np
import pytest

from tests.federated.plans import CNN, plan
from tests.federated.toys import images, without
from userdp.errors import UseError
from userdp.federated import silo as silo_module
from userdp.federated.accounting import Algorithm
from userdp.federated.admission import Absent, admit, readable_items, require_width
from userdp.federated.data import SubjectItems
from userdp.federated.models import build_model, weights_of
from userdp.federated.plan import ModelKind, ModelSpec
from userdp.federated.silo import DATA_FILE, PLAN_FILE, Silo, look
from userdp.files import write_json

LSTM = ModelSpec(kind=ModelKind.LSTM, width=4, inputs=12, outputs=12)
WORDS = ModelSpec(kind=ModelKind.CAUSAL_LM, width=1, inputs=5, outputs=12, base="bundled")


def spoilt_images(subject=2):
    """Every subject has images of classes 0 … 9; one has all kinds of numbers that are none."""
    data = images(6, seed=1).capped(3, np.random.default_rng(0))[0]
    rows = data.rows.copy()
    mine = np.flatnonzero(data.subjects == subject)
    rows[mine[0], 64] = 10
    if len(mine) > 1:
        rows[mine[1], 64] = -1
    if len(mine) > 2:
        rows[mine[2], 3] = np.iinfo(np.int64).max
    return SubjectItems(rows=rows, lengths=data.lengths, subjects=data.subjects), len(mine)


def text(rows, lengths):
    rows, lengths = np.array(rows, dtype=np.int64), np.array(lengths, dtype=np.int64)
    return SubjectItems.of(rows, lengths, np.arange(len(rows)))


def folder_of(tmp_path, data, made):
    """A silo's folder as the silo's own operator makes it."""
    folder = tmp_path / "silo"
    folder.mkdir(parents=True)
    write_json(folder / PLAN_FILE, made.to_dict())
    data.save(folder / DATA_FILE)
    return folder


def answer(folder, made):
    """What others see of a silo: that it says hello and takes part, and the shapes it sends."""
    try:
        look(folder, 0)
        here = Silo.open(folder, 0)
        update = here.run_round(1, weights_of(build_model(made.model)[0]))
        here.close()
    except Exception as error:  # others would see a refusal, whatever its kind
        return f"refused: {type(error).__name__}"
    return {name: (array.shape, bool(np.isfinite(array).all())) for name, array in update.items()}


@pytest.mark.parametrize("algorithm", list(Algorithm))
def test_a_bad_label_shows_in_nothing_that_a_silo_answers(tmp_path, algorithm):
    data, bad = spoilt_images()
    made = plan(algorithm=algorithm, sampling_probability=1.0)
    spoilt = folder_of(tmp_path / "spoilt", data, made)
    clean = folder_of(tmp_path / "clean", without(data, 2), made)
    assert answer(spoilt, made) == answer(clean, made)
    kept = spoilt / "absent.json"
    assert json.loads(kept.read_text()) == {"unreadable": bad, "over_the_cap": 0}
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600


def test_broken_twin_a_silo_that_takes_every_item_is_caught_by_its_refusal(tmp_path, monkeypatch):
    data, _ = spoilt_images()
    made = plan(sampling_probability=1.0)
    monkeypatch.setattr(silo_module, "admit", lambda plan, data, own_model: (data, Absent()))
    folder = folder_of(tmp_path / "spoilt", data, made)
    assert str(answer(folder, made)).startswith("refused")


def test_a_subject_over_the_cap_shows_in_nothing_that_a_silo_answers(tmp_path):
    data = images(8, seed=3)
    assert data.counts.max() > 3
    made = plan(sampling_probability=1.0)
    folder = folder_of(tmp_path, data, made)
    assert not isinstance(answer(folder, made), str)
    over = int(np.maximum(data.counts - 3, 0).sum())
    assert json.loads((folder / "absent.json").read_text())["over_the_cap"] == over


def test_a_silo_of_which_nothing_can_be_read_goes_on_with_noise_alone(tmp_path):
    data = images(3).capped(3, np.random.default_rng(0))[0]
    rows = data.rows.copy()
    rows[:, 64] = 77
    nobody = SubjectItems(rows=rows, lengths=data.lengths, subjects=data.subjects)
    made = plan(sampling_probability=1.0)
    assert not isinstance(answer(folder_of(tmp_path, nobody, made), made), str)


def test_whether_an_item_takes_part_depends_on_its_own_subject_alone():
    data, _ = spoilt_images()
    made = plan(group_size=2)
    kept, _ = admit(made, data)
    for subject in range(6):
        fewer, _ = admit(made, without(data, subject))
        mine, _ = admit(made, data.take(np.flatnonzero(data.subjects == subject)))
        rows = {row.tobytes() for row in kept.rows} - {row.tobytes() for row in mine.rows}
        assert {row.tobytes() for row in fewer.rows} == rows
        assert fewer.items == kept.items - mine.items


def test_broken_twin_a_cap_that_counts_across_subjects_is_caught():
    """The first items of the file in place of each subject's: who else is there decides."""
    data = images(4, seed=2)
    first = data.take(np.arange(2))
    fewer = without(data, 0).take(np.arange(2))
    mine = data.take(np.flatnonzero(data.subjects == 0)).take(np.arange(2))
    assert fewer.items != first.items - mine.items


@pytest.mark.parametrize(
    ("row", "length", "readable"),
    [
        ([1, 2, 3, 11, 0], 5, True),
        ([1, 2, 3, 12, 0], 5, False),
        ([1, 2, 3, 12, -7], 3, True),  # beyond its length nothing is read
        ([1, -1, 3, 4, 0], 4, False),
        ([1, 2, 3, 4, 5], 0, True),  # adds zero
        ([1, 2, 3, 4, 5], 6, False),
        ([1, 2, 3, 4, 5], -1, False),
    ],
)
@pytest.mark.parametrize("spec", [LSTM, WORDS], ids=["lstm", "causal-lm"])
def test_text_takes_part_if_its_tokens_are_the_models(spec, row, length, readable):
    assert readable_items(spec, text([row], [length])).tolist() == [readable]


def test_what_stands_beyond_a_rows_length_is_never_embedded(tmp_path):
    data = text([[1, 2, 3, 99, -4], [1, 2, 3, 4, 5]], [3, 5])
    made = plan(model=LSTM, sampling_probability=1.0)
    assert not isinstance(answer(folder_of(tmp_path, data, made), made), str)


def test_rows_of_another_models_width_are_refused_whoever_is_in_the_file(tmp_path):
    wide = text([[0] * 70], [70])
    for data in (wide, wide.take(np.arange(0))):
        with pytest.raises(UseError, match="65"):
            require_width(CNN, data)
    made = plan()
    assert answer(folder_of(tmp_path, wide, made), made) == "refused: UseError"
    require_width(LSTM, wide)
    with pytest.raises(UseError, match="at most 5"):
        require_width(WORDS, wide)
