"""What is shown of ε while a run goes on is never below what the accountant says."""

import pytest

from tests.plans import uls_plan
from userdp.errors import UseError
from userdp.plans import Plan
from userdp.plans.step import Spent

PLAN = uls_plan(steps=67)


def shortfalls(spent) -> list[int]:
    """The steps at which less is shown than the accountant says, asked at each by itself."""
    return [
        step
        for step in range(PLAN.steps + 1)
        if spent.epsilon(step) < min(PLAN.guarantee(step).epsilon, PLAN.guarantee().epsilon)
    ]


def test_no_step_is_shown_below_its_price():
    spent = Spent(PLAN)
    assert shortfalls(spent) == []
    assert spent.epsilon(0) == 0
    assert spent.epsilon(PLAN.steps) == spent.reserved == PLAN.guarantee().epsilon


def test_twin_a_price_of_an_earlier_step_is_caught():
    class Earlier(Spent):
        def epsilon(self, attempted):
            return super().epsilon(attempted // self._every * self._every)

    assert shortfalls(Earlier(PLAN))


def test_it_rises_and_asks_the_accountant_a_few_times():
    spent = Spent(PLAN)
    shown = [spent.epsilon(step) for step in range(PLAN.steps + 1)]
    assert shown == sorted(shown)
    assert len(spent._prices) <= 20


def test_the_words_say_that_the_whole_is_reserved():
    assert Spent(PLAN).words(PLAN.steps).endswith("reserved")


def test_a_price_that_there_is_not_ends_no_run(monkeypatch):
    def refuse(self, *arguments):
        raise UseError("no price")

    monkeypatch.setattr(Plan, "guarantee", refuse)
    assert Spent(PLAN).words(3) == ""


def test_more_steps_than_planned_have_no_price():
    with pytest.raises(ValueError, match="attempted"):
        Spent(PLAN).epsilon(PLAN.steps + 1)
