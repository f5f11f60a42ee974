"""Small plans for the tests of federations."""

from dataclasses import replace

from papers.images import LeafCNN, number_tokenizer
from userdp.federated.algorithms import ALGORITHMS, Declared, Unprotected
from userdp.federated.federation_plan import FederationPlan
from userdp.noise import Gaussian
from userdp.plans import Budget

PRIVATE = [name for name in ALGORITHMS if name != "fedavg"]
NUMBERS = number_tokenizer()
FACTS = {"tokenizer_sha256": NUMBERS.sha256, "vocab_size": NUMBERS.vocab_size}
CNN = LeafCNN(width=4, classes=10, seq_len=65, **FACTS)


def constants(**changes):
    """The arguments of `FederationPlan.calibrated`."""
    declared = {
        "items_per_silo": 40,
        "subjects_per_silo": 20,
        "group_size": 3,
        "batch_size": 10,
        "local_steps": 2,
        "l2_clip_norm": 0.5,
    }
    budget = {"target_epsilon": 4.0, "target_delta": 1e-5}
    federation = {
        "algorithm": "local-group-dp",
        "silos": 3,
        "silos_per_round": 3,
        "silos_per_subject": 3,
        "rounds": 2,
        "learning_rate": 0.1,
        "model": CNN,
    }
    probability = changes.pop("sampling_probability", None)
    for values in (declared, budget):
        values |= {name: changes.pop(name) for name in values if name in changes}
    if probability is not None:
        declared["batch_size"] = probability * declared["items_per_silo"]
    return federation | changes | {"declared": Declared(**declared), "budget": Budget(**budget)}


def plan(noise_multiplier=1.0, **changes):
    """A plan of a given noise, for no budget."""
    values = constants(target_epsilon=None, **changes)
    given = values.pop("declared"), values.pop("budget")
    local = ALGORITHMS[values["algorithm"]].local(*given)
    if not isinstance(local, Unprotected):
        local = replace(local, noise=Gaussian(multiplier=noise_multiplier))
    return FederationPlan(local=local, **values)
