"""Lineages added to each other: nothing that either of them knows is lost."""

from __future__ import annotations

from dataclasses import replace

from tests.plans import uls_plan
from userdp.claims.lineage import Apart, Lineage
from userdp.claims.parts import Query, Steps

RUN = Steps(id="run", plan=uls_plan())


def test_invariant_13_a_sum_keeps_the_further_charges_that_either_side_knows():
    one, other = (Lineage(parts=(replace(RUN, further=(name,)),)) for name in ("first", "second"))
    (whole,) = (one + other).parts
    assert whole.charges == 3
    assert whole.guarantee().epsilon == 3 * RUN.guarantee().epsilon
    (same,) = (one + one).parts
    assert same.charges == 2


def test_invariant_13_people_apart_from_one_store_are_not_apart_from_the_next():
    part = Query(id="q", name="users", pure_epsilon=0.5)
    declared = Lineage(apart=(Apart(part=part, ledger="here"),))
    assert declared.among("here", ()).parts == ()
    assert declared.among("there", ()).parts == (part,)
    assert declared.among("here", {"q"}).parts == (part,), "it charged them itself"
