"""What the caller's own code raises is theirs to read, where it was told nobody's text."""

from __future__ import annotations

import pytest
import torch

import userdp
from tests.secrets.conftest import CONFIG, PLAN
from tests.secrets.faults import TEXT, on_made_up_rows, raising
from tests.secrets.scan import findings
from tests.secrets.watch import listen
from userdp.data.progress import NoProgress
from userdp.gradients import causal_lm_loss
from userdp.training.models import new_model
from userdp.withheld import WithheldError, calling, withheld


class EnoughError(Exception):
    """By which somebody's own progress stops the work."""


class Stop(NoProgress):
    """A progress that has enough at a number of steps; without one, as soon as a stage begins."""

    def __init__(self, *, at: int | None = None) -> None:
        self.most, self.error = at, EnoughError("I have seen enough")

    def stage(self, name, total, *, unit="", note=None):
        if self.most is None:
            raise self.error

    def at(self, done):
        if self.most is not None and done >= self.most:
            raise self.error


def quoted(said, planted):
    return [one for data in said.channels.values() for one in findings(data, planted.secrets)]


def test_a_progress_stops_training_by_an_error_of_its_own(planted, tmp_path):
    run, stop = tmp_path / "run", Stop(at=1)
    with pytest.raises(EnoughError) as stopped:
        userdp.train(planted.store, PLAN, config=CONFIG, out=run, progress=stop, tensorboard=False)
    assert stopped.value is stop.error
    resumed = userdp.train(planted.store, out=run, resume=True, tensorboard=False)
    assert resumed is not None
    assert resumed.claim.complete


def test_a_progress_stops_preparing_by_an_error_of_its_own(planted, tmp_path):
    stop = Stop()
    with pytest.raises(EnoughError) as stopped:
        userdp.prepare(
            next((planted.folder / "input").iterdir()),
            out=tmp_path / "made",
            user="author",
            text="message",
            progress=stop,
        )
    assert stopped.value is stop.error
    assert list(tmp_path.iterdir()) == [], "nothing half-written is left"


@pytest.mark.parametrize("call", [calling, lambda function, *given: function(*given)])
def test_what_userdp_was_handling_meanwhile_is_told_to_nobody(call, planted, tmp_path, capfd):
    """The twin calls it as any function is called: Python then prints both errors."""
    stop = Stop()

    def work():
        try:
            raising("a value")()
        except ValueError:
            call(stop.stage, "reading", None)

    def guarded():
        with withheld():
            work()

    said = listen(guarded if call is calling else work, capfd, tmp_path)
    assert said.error is stop.error
    assert bool(quoted(said, planted)) == (call is not calling)


def test_causes_of_the_callers_own_stay():
    def stop():
        try:
            raise KeyError("mine")
        except KeyError as cause:
            raise EnoughError from cause

    with pytest.raises(EnoughError) as stopped, withheld():
        calling(stop)
    assert isinstance(stopped.value.__cause__, KeyError)


def test_a_loss_of_the_callers_own_reads_text_and_is_withheld(planted, tmp_path, capfd):
    """Its rows are people's, and so may its words be, whoever wrote it."""

    def loss(*rows):
        if on_made_up_rows():  # an error there could quote nobody
            return causal_lm_loss(*rows)
        raise EnoughError(TEXT)

    store = planted.store
    model = new_model(CONFIG, vocab_size=store.meta.vocab_size, seq_len=store.meta.seq_len)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def call():
        with userdp.make_private(
            model, optimizer, store, PLAN, out=tmp_path / "run", loss=loss
        ) as private:
            next(iter(private))

    said = listen(call, capfd, tmp_path / "temporary")
    assert isinstance(said.error, WithheldError)
    assert isinstance(said.error.withheld, EnoughError)
    assert quoted(said, planted) == []
