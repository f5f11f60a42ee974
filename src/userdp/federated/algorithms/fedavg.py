"""FedAvg: plain local steps, which protect nobody; what the private algorithms are held against."""

from __future__ import annotations

from typing import ClassVar

from userdp.federated.algorithms.base import Algorithm, Declared
from userdp.federated.algorithms.unprotected import Unprotected


class FedAvg(Algorithm):
    """A local step follows the mean gradient of a shuffled mini-batch; no ε is claimed."""

    name: ClassVar[str] = "fedavg"

    def local(self, declared: Declared) -> Unprotected:
        return Unprotected(
            steps=declared.local_steps, batch_size=max(1, round(declared.batch_size))
        )
