"""The local algorithms of a federation, a class in a file each, by their names."""

from userdp.errors import UseError
from userdp.federated.algorithms.base import Algorithm, Declared
from userdp.federated.algorithms.fedavg import FedAvg
from userdp.federated.algorithms.higradavg import HiGradAvg
from userdp.federated.algorithms.local_group import LocalGroup
from userdp.federated.algorithms.local_item import LocalItem
from userdp.federated.algorithms.unprotected import Unprotected
from userdp.federated.algorithms.user_ldp import UserLDP
from userdp.hints import one_of

ALGORITHMS: dict[str, Algorithm] = {
    algorithm.name: algorithm
    for algorithm in (FedAvg(), LocalItem(), LocalGroup(), HiGradAvg(), UserLDP())
}
"""Every algorithm by its name in plans and on the command line."""


def algorithm_of(name: str) -> Algorithm:
    """The algorithm of that name; `UseError` if there is none."""
    if name not in ALGORITHMS:
        raise UseError(f"there is no algorithm {name!r}", hint=one_of(name, ALGORITHMS))
    return ALGORITHMS[name]


__all__ = ["ALGORITHMS", "Algorithm", "Declared", "Unprotected", "algorithm_of"]
