"""Mechanisms that tests share."""

from userdp.accounting.mechanisms import Binomial, Capped, Mixture


def truncated(uncapped: Mixture, *, cap: int, most_units: int) -> Capped:
    """A Poisson draw from at most N units that is cut to ``cap``."""
    assert isinstance(uncapped.law, Binomial)
    law = Binomial(trials=most_units, probability=uncapped.law.probability)
    return Capped(mixture=uncapped, cap=cap, drawn=law)
