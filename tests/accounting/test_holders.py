"""What users pay who hold less than the cap."""

from __future__ import annotations

from userdp.accounting import binomial_steps
from userdp.accounting.holders import epsilon_by_items


def test_a_user_with_fewer_items_pays_the_price_of_a_smaller_cap() -> None:
    def capped(items: int):
        return binomial_steps(
            sampling_probability=0.01, group_size=items, noise_multiplier=1.0, steps=20
        )

    found = epsilon_by_items(capped(3), 1e-6)
    assert found == {items: capped(items).epsilon(1e-6) for items in (1, 2, 3)}
    assert list(epsilon_by_items(capped(3), 1e-6, at_most=2)) == [1, 2]
    assert list(epsilon_by_items(capped(3), 1e-6, at_most=9)) == [1, 2, 3]
