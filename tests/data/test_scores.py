"""Scores are exact functions of private text: nobody but the operator can ever open their file."""

import numpy as np
import pytest

from tests.modes import made_with, open_to_others
from tests.training.toy import toy_store
from userdp.data.scores import read_scores, write_scores
from userdp.data.splits import Split


def written(store, folder, monkeypatch, umask):
    """What others may open while the scores are being written, and afterwards."""
    counts = store.split(Split.TRAIN).counts
    seen = []

    def blocks():
        for count in counts:
            seen.append(open_to_others(folder))
            yield np.full(count, 2.5, dtype=np.float32)

    with made_with(umask, monkeypatch):
        write_scores(folder / "scores.arrow", store, blocks())
    return set().union(*seen, open_to_others(folder))


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "scores").mkdir()
    return tmp_path / "scores"


@pytest.mark.parametrize("umask", [0o022, 0o000])
def test_scores_are_never_open_to_others(tmp_path, folder, monkeypatch, umask):
    store = toy_store(tmp_path / "data")
    assert written(store, folder, monkeypatch, umask) == set()
    assert (read_scores(folder / "scores.arrow", store) == 2.5).all()
