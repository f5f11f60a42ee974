import math

import pytest

from userdp.core.errors import UseError
from userdp.core.vocabulary import (
    Adjacency,
    Guarantee,
    PrivacyUnit,
    require_count,
    require_delta,
    require_epsilon,
    require_noise_multiplier,
    require_positive,
    require_probability,
    round_up,
)

CLAIM = {"epsilon": 2.0, "delta": 1e-6, "sampling": "users", "accountant": "contour"}
CLAIM |= {"unit": PrivacyUnit.USER, "adjacency": Adjacency.ADD_OR_REMOVE}


@pytest.mark.parametrize(
    ("validate", "refused"),
    [
        (lambda x: require_positive("x", x), [0.0, -1.0, math.inf, math.nan]),
        (lambda x: require_probability("x", x), [0.0, -0.1, 1.0000001, math.inf, math.nan]),
        (require_delta, [0.0, 1.0, -1e-9, math.nan]),
        (require_epsilon, [-1e-9, math.inf, math.nan]),
        (require_noise_multiplier, [0.0, -1.0, 9e-31, 1.1e30, math.inf, math.nan]),
        (lambda x: require_count("x", x), [0, -1, 1.5, math.inf, math.nan, True]),
    ],
)
@pytest.mark.pitfall(number=21)
def test_invariant_8_every_validator_refuses_nan_infinity_and_out_of_range(validate, refused):
    for value in refused:
        with pytest.raises(UseError, match="must be"):
            validate(value)


@pytest.mark.parametrize("field", ["epsilon", "delta"])
def test_a_guarantee_refuses_nan(field):
    with pytest.raises(UseError):
        Guarantee(**{**CLAIM, field: math.nan})


@pytest.mark.pitfall(number=7)
def test_invariant_8_epsilon_is_printed_rounded_up_with_unit_adjacency_sampler_accountant():
    text = str(Guarantee(**{**CLAIM, "epsilon": 2.000001}))
    assert "2.0001" in text
    for word in ("user", "add-or-remove", "users", "contour"):
        assert word in text
    assert float(round_up(1.99999999)) >= 1.99999999
