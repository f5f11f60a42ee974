"""A second accountant on a claim: what it sums up, and that it is heard when it objects."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.plans import els_plan, uls_plan
from userdp.accounting import Accountant
from userdp.accounting.bracket import Bracket
from userdp.accounting.mechanisms import Mixture
from userdp.accounting.private_selection import PoissonNumber
from userdp.claims import Claim
from userdp.claims.claims import second_opinion
from userdp.claims.lineage import of_parts
from userdp.core.errors import FailureError
from userdp.ledger.charged_parts import Bound, Choice, Query, Steps, Unclaimed
from userdp.plans import FixedGrid, Plan, PrivateSelection
from userdp.sampling import FixedSizeUsers

ULS = uls_plan(steps=50, noise_multiplier=1.5)
QUERY = Query(id="q", name="users", pure_epsilon=0.25)


def claim_of(*parts) -> Claim:
    lineage = of_parts(parts)
    guarantee = lineage.guarantee()
    return Claim(guarantee=guarantee, lineage=lineage, subject="model", steps=1, complete=True)


def test_of_one_run_it_is_the_plans_number_by_the_other_accountant():
    told = claim_of(Steps(id="a", plan=ULS))
    second = second_opinion(told)
    assert second == ULS.guarantee(accountant=Accountant.RDP)
    assert told.guarantee.epsilon < second.epsilon


def test_it_counts_every_part_and_every_run_of_a_grid():
    once = second_opinion(claim_of(Steps(id="a", plan=ULS)))
    twice = second_opinion(claim_of(Steps(id="a", plan=ULS), Steps(id="b", plan=ULS), QUERY))
    grid = FixedGrid(plans=(ULS, ULS), score_epsilon=0.125)
    chosen = second_opinion(claim_of(Choice(id="g", tuning=grid)))
    assert once is not None
    for several in (twice, chosen):
        assert several is not None
        assert several.epsilon == pytest.approx(2 * once.epsilon + 0.25, rel=1e-12)
        assert several.delta == pytest.approx(2 * once.delta, rel=1e-12)


@pytest.mark.parametrize("accountant", [Accountant.CONTOUR, Accountant.GROUP_PRIVACY])
def test_example_level_sampling_and_group_privacy_have_one(accountant):
    plan = els_plan(steps=20, noise_multiplier=4.0, accountant=accountant)
    second = second_opinion(claim_of(Steps(id="a", plan=plan)))
    assert second is not None
    exact = claim_of(Steps(id="a", plan=replace(plan, accountant=Accountant.CONTOUR)))
    assert second.epsilon >= exact.guarantee.epsilon


def fixed_size() -> Plan:
    return replace(ULS, sampling=FixedSizeUsers(batch_size=10, least_population=100, group_size=2))


@pytest.mark.parametrize(
    "part",
    [
        Steps(id="a", plan=fixed_size()),
        QUERY,
        Choice(
            id="s",
            tuning=PrivateSelection(
                plans=(ULS,), score_epsilon=0.1, repetitions=PoissonNumber(mu=2.0)
            ),
        ),
        Bound(id="b", what="a federation", bound=ULS.guarantee()),
        Unclaimed(id="u", why="training without privacy"),
    ],
    ids=["fixed size", "a query", "private selection", "computed elsewhere", "no claim"],
)
def test_where_one_accountant_alone_knows_the_price_there_is_no_second(part):
    assert second_opinion(claim_of(part)) is None


def test_a_claim_of_too_little_noise_is_contradicted(monkeypatch):
    """The broken twin: a first accountant that certifies more than Rényi DP allows is caught."""

    def too_much(self, delta):
        return Bracket(lower=1000.0, upper=1000.1, accountant="contour")

    told = claim_of(Steps(id="a", plan=ULS))
    monkeypatch.setattr(Mixture, "epsilon", too_much)
    with pytest.raises(FailureError, match="contradict each other"):
        second_opinion(told)
