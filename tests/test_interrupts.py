"""The first signal asks, the second ends; none is lost, and none is heard twice."""

import os
import signal
import threading
import time

import pytest

from userdp.core import interrupts
from userdp.core.errors import Interrupted, UserdpError
from userdp.core.interrupts import held, terminable, told


def send(number=signal.SIGINT):
    os.kill(os.getpid(), number)
    time.sleep(0)  # Python runs handlers between two instructions


@pytest.mark.parametrize("number", interrupts.SIGNALS)
def test_the_first_signal_waits_for_the_next_check(number):
    before = signal.getsignal(number)
    with pytest.raises(Interrupted, match="step 24 of") as caught, held() as signals:  # noqa: PT012
        signals.check("after step 23 of 100", resume=True)
        send(number)
        assert signals.heard
        signals.check("after step 24 of 100", resume=True)
    assert caught.value.exit_status == 130
    assert signal.getsignal(number) is before


def test_a_second_signal_ends_at_once():
    with pytest.raises(KeyboardInterrupt) as caught, held() as signals:  # noqa: PT012
        send()
        signals._first -= 2 * interrupts._SAME
        send()
        pytest.fail("it went on")
    assert not isinstance(caught.value, Interrupted)


def test_a_signal_that_comes_twice_at_once_is_one_and_what_is_finished_is_not_interrupted():
    with held() as signals:
        send()
        send(signal.SIGTERM)
        assert signals.heard
        signals.finished()


def test_a_signal_that_nobody_asked_for_comes_at_the_end():
    went_on = False
    with pytest.raises(KeyboardInterrupt), held():  # noqa: PT012
        send()
        went_on = True
    assert went_on


def test_an_inner_block_leaves_the_answer_to_the_outer_one():
    with held() as outer:
        with held() as inner:
            send()
            assert not inner.heard
            inner.check("in the middle of a step of the outer one", resume=True)
        assert outer.heard
        outer.finished()


def test_another_thread_hears_nothing():
    heard = []

    def work():
        with held() as signals:
            heard.append(signals.heard)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert heard == [False]


def test_a_signal_that_is_ignored_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with held() as signals:
            send()
            assert not signals.heard
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_error_of_the_block_comes_out_with_the_signal():
    with pytest.raises(KeyboardInterrupt) as caught, held():  # noqa: PT012
        send()
        raise ValueError("of the block")
    assert isinstance(caught.value.__context__, ValueError)


def test_told_says_where_and_leaves_what_is_said():
    with pytest.raises(Interrupted, match="on the way; call it"), told("on the way", resume=False):
        raise KeyboardInterrupt
    inner = Interrupted("after step 1 of 2", resume=True)
    with pytest.raises(Interrupted, match="resume=True"), told("outside", resume=False):
        raise inner
    with pytest.raises(Interrupted, match="outside"), told("outside", resume=False, always=True):
        raise inner


def test_sigterm_ends_a_command_as_ctrl_c_does():
    cleaned = False
    with pytest.raises(KeyboardInterrupt), terminable():  # noqa: PT012
        try:
            send(signal.SIGTERM)
            time.sleep(10)
        finally:
            cleaned = True
    assert cleaned
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_script_that_goes_on_after_errors_does_not_go_on_after_an_interrupt():
    assert not issubclass(Interrupted, Exception)
    assert not issubclass(Interrupted, UserdpError)
