"""Progress where there is no terminal: lines, by steps and by the clock; and no private count."""

import pytest

from tests.heard import Heard
from userdp.api import progress as module
from userdp.api.progress import Lines, shown
from userdp.data.progress import Uncounted


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def told():
    return []


@pytest.fixture
def lines(told, clock):
    return Lines(told.append, clock)


def test_twenty_steps_are_a_line_with_epsilon_and_the_time_left(lines, told, clock):
    lines.stage("train", 100, unit="step", note=lambda done: f"epsilon {done} of 100 reserved")
    for step in range(41):
        clock.now = float(step)
        lines.at(step)
    assert told == [
        "step 20 of 100, epsilon 20 of 100 reserved, 1 min 20 s left",
        "step 40 of 100, epsilon 40 of 100 reserved, 1 min 0 s left",
    ]


def test_thirty_seconds_are_a_line_whatever_the_steps(lines, told, clock):
    lines.stage("train", 100, unit="step")
    lines.at(0)
    clock.now = 31.0
    lines.at(1)
    clock.now = 45.0
    lines.at(2)
    assert told == ["step 1 of 100, 51 min 9 s left"]


def test_a_resumed_run_counts_from_where_it_goes_on(lines, told, clock):
    lines.stage("train", 100, unit="step")
    lines.at(90)
    clock.now = 10.0
    lines.at(95)
    assert told == []
    clock.now = 30.0
    lines.at(96)
    assert told == ["step 96 of 100, 20 s left"]


def test_a_stage_that_takes_minutes_is_not_silent(lines, told, clock):
    lines.stage("grouping", None)
    clock.now = 29.0
    assert lines.beat() == pytest.approx(1.0)
    clock.now = 95.0
    assert lines.beat() == pytest.approx(30.0)
    assert told == ["grouping: 1 min 35 s so far"]


def test_the_thread_writes_while_nobody_calls(monkeypatch, told):
    monkeypatch.setattr(module, "_SECONDS", 0.05)
    with Lines(told.append) as lines:
        lines.stage("grouping", None)
        while not told:
            pass
    assert told[0].startswith("grouping: ")


def test_units_without_a_name_are_a_fraction(lines, told, clock):
    lines.stage("tokenizing", 4000)
    lines.at(0)
    clock.now = 60.0
    lines.at(1000)
    assert told == ["tokenizing: 25% done, 3 min 0 s left"]


def test_without_a_terminal_lines_are_shown():
    with shown() as progress:
        assert isinstance(progress, Lines)


def measure(progress, users):
    progress.stage("evaluate", users)
    for user in range(users):
        progress.at(user + 1)


def test_what_answers_under_dp_tells_the_same_whoever_is_there():
    with_them, without = Heard(), Heard()
    measure(Uncounted(with_them), 101)
    measure(Uncounted(without), 100)
    assert with_them.calls == without.calls == [("evaluate", None)]


def test_twin_progress_that_counts_tells_who_is_there():
    with_them, without = Heard(), Heard()
    measure(with_them, 101)
    measure(without, 100)
    assert with_them.calls != without.calls
