"""The first signal asks, the second ends; none is lost, and none is heard twice."""

import os
import signal
import threading
import time

import pytest

from userdp.core import interrupts
from userdp.core.errors import Interrupted
from userdp.core.interrupts import held, on_interrupt


def send(number=signal.SIGINT):
    os.kill(os.getpid(), number)
    time.sleep(0)  # Python runs handlers between two instructions


@pytest.mark.parametrize("number", interrupts.SIGNALS)
def test_the_first_signal_waits_until_the_block_asks(number):
    before = signal.getsignal(number)
    with pytest.raises(Interrupted, match="step 24 of") as caught, held() as signals:  # noqa: PT012
        assert not signals.heard
        send(number)
        assert signals.heard
        raise Interrupted("after step 24 of 100", resume=True)
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
        signals.heard = False


def test_a_signal_that_nobody_asked_for_comes_at_the_end():
    with pytest.raises(KeyboardInterrupt), held():
        send()


def test_an_inner_block_and_another_thread_leave_the_answer_to_the_outer_block():
    heard = []

    def work():
        with held() as signals:
            heard.append(signals.heard)

    with held() as outer:
        send()
        work()
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert outer.heard
        outer.heard = False
    assert heard == [False, False]


def test_a_signal_that_is_ignored_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with held() as signals:
            send()
            assert not signals.heard
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("inner", "always", "said"),
    [
        (KeyboardInterrupt(), False, "outside; call it"),
        (Interrupted("after step 1 of 2", resume=True), False, "resume=True"),
        (Interrupted("after step 1 of 2", resume=True), True, "outside; call it"),
    ],
)
def test_an_interrupt_is_told_of_once(inner, always, said):
    with (
        pytest.raises(Interrupted, match=said),
        on_interrupt(Interrupted("outside"), always=always),
    ):
        raise inner


def test_a_script_that_goes_on_after_errors_does_not_go_on_after_an_interrupt():
    assert not issubclass(Interrupted, Exception)
