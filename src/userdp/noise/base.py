"""`NoiseLaw`: what the noise of a run's steps is, and what it costs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from userdp.core.vocabulary import require_noise_multiplier


@dataclass(frozen=True, kw_only=True)  # no slots: the codec finds laws as subclasses
class NoiseLaw(ABC):
    """The joint law of the noise of all steps, on each coordinate of the clipped sums.

    `userdp.training.distributed.source_for` says what draws it.

    Args:
        multiplier: σ, the standard deviation of the noise that is drawn anew at each step, divided
            by the clip norm; > 0. Beside the count of adaptive clipping the sum has more, see
            `userdp.core.clip`.

    Raises:
        UseError: the multiplier is out of its range (NaN included).
    """

    kind: ClassVar[str]

    multiplier: float

    def __post_init__(self) -> None:
        require_noise_multiplier(self.multiplier)

    @property
    @abstractmethod
    def independent_multiplier(self) -> float | None:
        """The multiplier of independent Gaussian noise that protects no better than this noise.

        Guarantee: for every way of sampling, and however a step depends on earlier releases, the
        steps with this noise are dominated by those with that independent noise. None where that is
        not proven: a plan then has no mechanism, and nothing is claimed for it.
        """
