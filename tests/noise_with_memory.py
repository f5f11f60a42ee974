"""A toy noise with memory, e_t = a e_{t-1} + g_t: what correlated noise asks of training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from userdp.gradients import NoiseSource
from userdp.gradients.noise import source_of
from userdp.noise import NoiseLaw
from userdp.noise.gaussian import NoiseSampler


@dataclass(frozen=True, kw_only=True)
class AutoRegressive(NoiseLaw):
    """e_t = ``coefficient`` e_{t-1} + g_t; nothing is proven of it, so it has no price."""

    kind: ClassVar[str] = "auto-regressive"
    memory: ClassVar[int] = 1

    coefficient: float = 0.8

    @property
    def independent_multiplier(self) -> None:
        """No bound is proven."""


class AutoRegressiveSource:
    """Draws it; its state is the last noise of every coordinate."""

    def __init__(self, law: AutoRegressive, seed: int | None) -> None:
        self._coefficient, self._fresh = law.coefficient, NoiseSource(unsafe_noise_seed=seed)
        self.last: dict[str, Tensor] = {}

    @property
    def unsafe(self) -> bool:
        return self._fresh.unsafe

    def sampler_on(self, device: torch.device) -> NoiseSampler:
        return self._fresh.sampler_on(device)

    def add_(self, value: dict[str, Tensor], noise_std: float) -> None:
        noise = {
            name: self._coefficient * self.last.get(name, torch.zeros_like(v))
            for name, v in value.items()
        }
        self._fresh.add_(noise, noise_std)
        for name, part in noise.items():
            value[name] += part
        self.last = noise

    def state(self) -> dict[str, Tensor]:
        return self._fresh.state() | {f"last {name}": v for name, v in self.last.items()}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self._fresh.restore(state)
        self.last = {name[5:]: v.clone() for name, v in state.items() if name.startswith("last ")}


@source_of.register
def _(law: AutoRegressive, *, unsafe_noise_seed: int | None = None) -> AutoRegressiveSource:
    return AutoRegressiveSource(law, unsafe_noise_seed)
