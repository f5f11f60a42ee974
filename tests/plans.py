"""Plans that tests share: small, with noise given, so that nothing is calibrated."""

from userdp.plan import Plan


def uls_plan(**changes) -> Plan:
    values = {
        "population": 100,
        "cohort_size": 10,
        "group_size": 4,
        "steps": 5,
        "l2_clip_norm": 0.5,
        "target_delta": 1e-5,
        "noise_multiplier": 2.0,
    }
    return Plan.for_users(**{**values, **changes})


def els_plan(**changes) -> Plan:
    values = {
        "population": 400,
        "batch_size": 20,
        "group_size": 4,
        "steps": 5,
        "l2_clip_norm": 0.5,
        "target_delta": 1e-5,
        "noise_multiplier": 3.0,
    }
    return Plan.for_examples(**{**values, **changes})
