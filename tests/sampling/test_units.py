"""What a unit of each sampling is, and how likely it joins a step."""

from __future__ import annotations

import numpy as np
import pytest

from userdp.sampling import FixedSizeUsers
from userdp.sampling.poisson import PoissonPooled, PoissonSubjects, subject_probability

USERS = np.array([0, 0, 0, 4, 7, 7])


@pytest.mark.parametrize(
    ("kind", "ends"), [(PoissonPooled, [0, 6]), (PoissonSubjects, [0, 3, 4, 6])]
)
def test_a_unit_is_all_that_was_drawn_or_all_of_one_subject(kind, ends):
    sampling = kind(sampling_probability=0.1, group_size=3)
    assert sampling.unit_offsets(USERS).tolist() == ends
    assert sampling.unit_offsets(USERS[:0]).tolist() == [0]


def test_a_subject_is_in_a_step_if_any_of_its_examples_is():
    assert subject_probability(0.5, 2) == pytest.approx(0.75, rel=1e-13)
    assert subject_probability(0.5, 2) >= 0.75
    assert subject_probability(1.0, 3) == 1.0


def test_the_denominator_of_subjects_is_of_those_that_were_declared():
    sampling = PoissonSubjects(sampling_probability=0.5, group_size=2)
    assert sampling.expected_units(1000) == pytest.approx(750, rel=1e-12)


@pytest.mark.parametrize(("total", "chance"), [(0, 0.0), (5, 1.0), (10, 1.0), (40, 0.25)])
def test_a_batch_of_fixed_size_holds_each_unit_with_its_share(total, chance):
    sampling = FixedSizeUsers(batch_size=10, group_size=1, least_population=10)
    assert sampling.chance(total) == chance
