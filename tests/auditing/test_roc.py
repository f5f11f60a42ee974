"""ROC and AUC against counting by hand."""

import numpy as np
import pytest

from userdp.auditing import inference
from userdp.auditing.inference import area, roc


def test_the_area_is_the_part_of_all_pairs_that_are_in_order():
    draw = np.random.default_rng(0)
    members, others = draw.integers(0, 9, 30) * 1.0, draw.integers(-2, 8, 23) * 1.0
    pairs = [(m > o) + 0.5 * (m == o) for m in members for o in others]
    assert area(members, others) == pytest.approx(np.mean(pairs))
    assert np.trapezoid(*np.array(roc(members, others).curve).T[::-1]) == pytest.approx(
        np.mean(pairs)
    )


@pytest.mark.slow
def test_true_positives_are_counted_where_few_others_are_above():
    others = np.arange(200.0)
    members = np.array([197.5, 198.5, 500.0, 600.0, 3.0])
    assert roc(members, others).tpr_at_low_fpr == pytest.approx(4 / 5)


@pytest.mark.slow
def test_the_interval_covers_chance_for_equals_and_not_for_members(monkeypatch):
    monkeypatch.setattr(inference, "_RESAMPLES", 100)
    draw = np.random.default_rng(1)
    equal = [roc(draw.standard_normal(60), draw.standard_normal(60)).at_chance for _ in range(40)]
    assert np.mean(equal) > 0.85
    apart = roc(draw.standard_normal(60) + 1, draw.standard_normal(60))
    assert apart.auc_low > 0.5
    assert not apart.at_chance
