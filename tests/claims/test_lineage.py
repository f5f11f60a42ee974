"""Lineages added to each other: nothing that either of them knows is lost."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tests.plans import uls_plan
from userdp.claims import Claim
from userdp.claims.lineage import of_parts
from userdp.core.vocabulary import Adjacency, PrivacyUnit
from userdp.ledger.charged_parts import Bound, Query, Steps

PLAN = uls_plan()
RUN = Steps(id="run", plan=PLAN)
QUERY = Query(id="q", name="users", pure_epsilon=0.1)


def test_a_claim_is_one_mechanism_only_if_a_single_charge_is_all_of_it():
    def claimed(*parts):
        whole = of_parts(parts)
        return Claim(
            guarantee=whole.guarantee(), lineage=whole, subject="run", steps=5, complete=True
        ).mechanism

    assert claimed(RUN) == PLAN.mechanism
    assert claimed(RUN, QUERY) is None
    assert claimed(QUERY, RUN) is None
    assert claimed(QUERY) is None
    assert claimed() is None


@pytest.mark.parametrize(
    ("units", "whole"),
    [
        (("USER", "USER"), "USER"),
        (("USER", "SUBJECT"), "SUBJECT"),
        (("SILO", "SILO"), "SILO"),
        (("SUBJECT", "SILO"), None),
        (("SILO", "LONE_ITEM"), None),
    ],
    ids=str,
)
def test_only_prices_of_one_unit_add_up(units, whole):
    """A sum over subjects and silos bounds neither; a subject is a user of several silos."""
    bounds = [replace(QUERY.guarantee(), unit=PrivacyUnit[unit]) for unit in units]
    parts = [Bound(id=str(number), what="", bound=one) for number, one in enumerate(bounds)]
    found = of_parts(parts).guarantee()
    if whole is None:
        assert found.epsilon == math.inf
        assert found.accountant == "none"
    else:
        assert found.epsilon == pytest.approx(0.2)
        assert found.unit is PrivacyUnit[whole]


def test_prices_of_different_neighbours_do_not_add_up():
    other = Bound(id="b", what="", bound=replace(QUERY.guarantee(), adjacency=Adjacency.REPLACE))
    assert of_parts([QUERY, other]).guarantee().epsilon == math.inf
