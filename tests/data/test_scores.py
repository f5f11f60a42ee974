"""Scores are exact functions of private text: nobody but the operator can ever open their file."""

import numpy as np
import pytest

from tests.modes import made_with, open_to_others
from tests.training.toy import toy_store
from userdp.data import scores as module
from userdp.data.files import write_table
from userdp.data.scores import read_scores, write_scores


def written(store, folder, monkeypatch, umask):
    """What others may open while the scores are being written, and afterwards."""
    seen: set[str] = set()

    def looking(*arguments):
        seen.update(open_to_others(folder))
        write_table(*arguments)

    monkeypatch.setattr(module, "write_table", looking)
    with made_with(umask, monkeypatch):
        scores = np.full(store.split("train").counts.sum(), 2.5, dtype=np.float32)
        write_scores(folder / "scores.arrow", store, scores)
    return seen | open_to_others(folder)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "scores").mkdir()
    return tmp_path / "scores"


@pytest.mark.parametrize("umask", [0o022, 0o000])
def test_scores_are_never_open_to_others(tmp_path, folder, monkeypatch, umask):
    store = toy_store(tmp_path / "data")
    assert written(store, folder, monkeypatch, umask) == set()
    assert (read_scores(folder / "scores.arrow", store) == 2.5).all()
