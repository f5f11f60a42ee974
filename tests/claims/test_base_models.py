"""The claim follows the weights: a base model that has seen the same people is no public one."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest

from tests.claims.lives import LEARNING, PLAN, SHAPE, Teller, begin, train_from, truth
from tests.data.corpora import ListSource, interleaved
from tests.speed import fast_then_slow
from tests.training.conftest import prepared
from tests.training.toy import cycles, toy_store
from userdp.data.prepare import append_records
from userdp.data.store import UserStore

__all__ = ["prepared"]

HOW = ["in place", "copied", "renamed", "prepared again", "appended"]


@pytest.fixture(scope="module")
def released(prepared, tmp_path_factory) -> Path:
    """A store, and a private run on it whose model was released."""
    folder = tmp_path_factory.mktemp("released")
    store = UserStore.open(shutil.copytree(prepared, folder / "store"))
    begin(store, folder / "private")
    return folder


@pytest.fixture
def life(released, tmp_path) -> Path:
    """A copy of the store and the private run, for one test to go on with."""
    shutil.copytree(released, tmp_path / "life")
    return tmp_path / "life"


def moved(life: Path, run: str, how: str, tmp_path: Path) -> tuple[Path, Path]:
    """The store to train on next, and where the released model is then found."""
    store, model = life / "store", life / run / "model"
    if how == "copied":
        return store, shutil.copytree(model, tmp_path / "base")
    if how == "renamed":
        (life / run).rename(life / "a-public-model")
        model = life / "a-public-model" / "model"
        return store, model.rename(tmp_path / "gpt2")
    if how == "prepared again":
        return toy_store(tmp_path / "again").path, model
    if how == "appended":
        append_records(ListSource(interleaved(cycles(3, seed=5))), store)
    return store, model


@pytest.mark.slow
@pytest.mark.parametrize("how", fast_then_slow(HOW))
@pytest.mark.pitfall(number=37)
def test_a_model_trained_on_top_of_a_released_one_claims_both_runs(life, tmp_path, how):
    """Six private steps on the released model of an earlier run of six, over the same people.

    The second model is a function of both runs: 12 steps, ε = 3.02 (4.94 if the two are added up),
    and the card says 2.47. Nor may the first run be lost by copying its model, giving it another
    name, adding records to the store, or preparing the same text as another store.
    """
    tell = Teller()
    store, base = moved(life, "private", how, tmp_path)
    status, run = train_from(tell, store, tmp_path / "second", base)
    epsilon, delta = tell.of_model(run) if status == 0 else (math.inf, 0.0)
    assert epsilon >= truth(delta, steps=2 * PLAN.steps)


@pytest.mark.slow
@pytest.mark.parametrize("how", HOW)
@pytest.mark.pitfall(number=37)
def test_a_model_on_top_of_one_without_privacy_claims_nothing(life, tmp_path, how):
    """The base is a model trained without privacy on the same people; six private steps follow.

    Whatever the base has learned by heart is still in the weights: no ε is true for them, and 2.47
    is printed. It is the same however the base came to where it lies.
    """
    tell = Teller()
    plain = ("--set", "plain.steps=3", "--set", "plain.batch_size=4")
    tell.done(
        "train", life / "store", "--out", life / "plain", *plain, "--model", "new", *SHAPE,
        *LEARNING,
    )  # fmt: skip
    store, base = moved(life, "plain", how, tmp_path)
    status, run = train_from(tell, store, tmp_path / "second", base)
    epsilon, _ = tell.of_model(run) if status == 0 else (math.inf, 0.0)
    assert epsilon == math.inf
