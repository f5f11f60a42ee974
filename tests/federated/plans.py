"""Small plans for the tests of federations."""

from userdp.federated.accounting import Algorithm
from userdp.federated.plan import FederationPlan, ModelKind, ModelSpec

CNN = ModelSpec(kind=ModelKind.CNN, width=4, inputs=8, outputs=10)


def constants(**changes):
    values = {
        "algorithm": Algorithm.LOCAL_GROUP,
        "silos": 3,
        "silos_per_round": 3,
        "silos_per_subject": 3,
        "rounds": 2,
        "local_steps": 2,
        "sampling_probability": 0.25,
        "items_per_silo": 40,
        "subjects_per_silo": 20,
        "group_size": 3,
        "l2_clip_norm": 0.5,
        "learning_rate": 0.1,
        "target_delta": 1e-5,
        "model": CNN,
    }
    return values | changes


def plan(noise_multiplier=1.0, **changes):
    values = constants(**changes)
    if values["algorithm"] is Algorithm.FEDAVG:
        noise_multiplier = 0.0
    return FederationPlan(**values, noise_multiplier=noise_multiplier)
