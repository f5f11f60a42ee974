r"""Noise for a sum that several processes share: each process draws that of its own numbers.

**Whole models** (`SharedNoise`). Write the sum's tensors as one vector of N numbers. Of n processes
number r owns the numbers from rb up to (r + 1)b, with b = ⌈N/n⌉ (`userdp.training.shares`).

*Claim.* After `SharedNoise.add_` every process holds the same vector: the sum of all processes plus
noise, where the noise of the N coordinates is independent, each N(0, ``noise_std``²) up to the
distance and the assumption of `userdp.noise.gaussian`, as if one process had drawn all of it.

*Proof.* (1) The owners' stretches are disjoint, and cover the vector since nb >= N: each coordinate
has one owner. (2) `userdp.training.distributed.World.sum_to_shares` gives an owner the sums of its
coordinates; it calls `NoiseSource.add_` once for them, and for no others, which adds N(0,
``noise_std``²) to each, independent within the process, and rounds to a public grid that depends on
``noise_std`` only. (3) Each draw of each block of each process is seeded with fresh bits of the
operating system of that process: no seed is shared, sent or derived from another, so what different
processes draw is independent too. (4) `World.shares_to_all` then gives everybody, for each
coordinate, its owner's number, and what stood there before is overwritten: no coordinate goes out
without noise, or with the noise of two. ∎

**In what bits they are handed out.** Parameters of at most 32 bits get their noisy numbers in
float32: half the bytes. It is post-processing, of which the owner too keeps the rounded number, so
all processes hold the same bits. Mostly it rounds nothing: a noisy number is a multiple of
g = 2^-20 2^e for the greatest 2^e <= ``noise_std``, and float32 holds every multiple of g up to
2^24 g = 16 2^e, which is more than 8 ``noise_std``. Sums *before* noise stay float64
(docs/scaling.md says why).

**Models in parts**: the same with other stretches, which FSDP cut (`ScatteredNoise`). **Laws with
memory** are not cut, since their state must stay one (`RankZeroNoise`).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from userdp.errors import UseError
from userdp.gradients import NoiseSource, trainable_parameters
from userdp.gradients.noise import Noise, require_priced, source_of, usual_sampler
from userdp.gradients.shards import ShardNoise, is_sharded
from userdp.noise import Gaussian, NoiseLaw
from userdp.noise.gaussian import NoiseSampler
from userdp.training.distributed import World


class SharedNoise:
    """Independent Gaussian noise of which each process draws that of its own share.

    Guarantee: see the module. No state: nothing to keep, or to take apart, from step to step.

    Args:
        world: the processes.
        model: which parameters' noisy numbers float32 may carry is told from it.
        unsafe_noise_seed: FOR TESTS ONLY: the noise of one process with this seed, which every
            process draws whole.
    """

    def __init__(
        self, world: World, model: nn.Module, *, unsafe_noise_seed: int | None = None
    ) -> None:
        self._world = world
        self._short = {
            name
            for name, parameter in trainable_parameters(model).items()
            if parameter.element_size() <= torch.float32.itemsize
        }
        self._source = NoiseSource(unsafe_noise_seed=unsafe_noise_seed)

    @property
    def unsafe(self) -> bool:
        """Whether the noise comes from a known seed, so that no privacy may be claimed."""
        return self._source.unsafe

    def sampler_on(self, device: torch.device) -> NoiseSampler:
        """What each process draws with; all of them compute on one kind of device."""
        return self._source.sampler_on(device)

    def add_(self, value: dict[str, Tensor], noise_std: float) -> None:
        """Noise for this process's share of ``value``; then everybody's, on every process.

        Args:
            value: of each process its own share is read, see `World.sum_to_shares`; afterwards all
                of it is everybody's noisy numbers.
            noise_std: as of `NoiseSource.add_`.
        """
        # The shares of all processes together are what one step releases.
        require_priced(sum(tensor.numel() for tensor in value.values()))
        # One process with a known seed draws the numbers in this order, so the share is cut after.
        mine = value if self.unsafe else self._world.own_share(value)
        self._source.add_(mine, noise_std)
        narrow = set(value) <= self._short
        self._world.shares_to_all(value, dtype=torch.float32 if narrow else torch.float64)

    def state(self) -> dict[str, Tensor]:
        """Nothing: every draw is new. In tests with a known seed, how many calls there were."""
        return self._source.state()

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """In tests with a known seed: go on behind the calls that there were."""
        self._source.restore(state)


class ScatteredNoise(SharedNoise):
    """Noise for a sum of which each process holds a part, and for numbers that all share.

    Guarantee: each coordinate's noise is drawn once: a sharded parameter's by the process that
    holds the part (`userdp.gradients.shards.ShardNoise`), any other number's by its owner.
    """

    def __init__(
        self, world: World, model: nn.Module, *, unsafe_noise_seed: int | None = None
    ) -> None:
        other = None if unsafe_noise_seed is None else unsafe_noise_seed + 1
        super().__init__(world, model, unsafe_noise_seed=other)
        self._names = set(trainable_parameters(model))
        self._parts = ShardNoise(model, unsafe_noise_seed=unsafe_noise_seed)

    def add_(self, value: dict[str, Tensor], noise_std: float) -> None:
        """Noise for this process's parts, or for everybody's shares of other numbers."""
        if set(value) <= self._names:
            self._parts.add_(value, noise_std)
        else:
            super().add_(value, noise_std)


class RankZeroNoise:
    """Noise of a law with memory: rank 0 adds it, once, and every process receives.

    Guarantee: as the law's own source, once for all processes: only rank 0 has a source. Its state
    is of all coordinates, and so of any number of processes that a run goes on with.
    """

    def __init__(
        self, world: World, law: NoiseLaw, *, unsafe_noise_seed: int | None = None
    ) -> None:
        self._world = world
        self._source = (
            source_of(law, unsafe_noise_seed=unsafe_noise_seed) if world.rank == 0 else None
        )
        self._unsafe = unsafe_noise_seed is not None

    @property
    def unsafe(self) -> bool:
        """Whether the noise comes from a known seed, so that no privacy may be claimed."""
        return self._unsafe

    def sampler_on(self, device: torch.device) -> NoiseSampler:
        """What rank 0 draws with; all processes compute on one kind of device."""
        return usual_sampler(device)

    def add_(self, value: dict[str, Tensor], noise_std: float) -> None:
        """The ``value`` of everybody's shares with the noise of rank 0, on every process."""
        self._world.shares_to_all(value)
        if self._source is not None:
            self._source.add_(value, noise_std)
        self._world.broadcast(value)

    def state(self) -> dict[str, Tensor]:
        """The state of the source on rank 0; the other processes have none."""
        return {} if self._source is None else self._source.state()

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Rank 0 goes on from ``state``."""
        if self._source is not None:
            self._source.restore(state)


def source_for(
    world: World, model: nn.Module, law: NoiseLaw, *, unsafe_noise_seed: int | None = None
) -> Noise:
    """What draws each coordinate's noise once, however the model's sum is held.

    Raises:
        UseError: the model is sharded, and the law is not that of independent Gaussian noise, which
            alone has parts.
    """
    in_shares = isinstance(law, Gaussian)
    if any(is_sharded(p) for p in trainable_parameters(model).values()):
        if not in_shares:
            raise UseError(f"noise of kind {law.kind!r} is not drawn in parts: do not shard")
        return ScatteredNoise(world, model, unsafe_noise_seed=unsafe_noise_seed)
    if world.size == 1:
        return source_of(law, unsafe_noise_seed=unsafe_noise_seed)
    if in_shares:
        return SharedNoise(world, model, unsafe_noise_seed=unsafe_noise_seed)
    return RankZeroNoise(world, law, unsafe_noise_seed=unsafe_noise_seed)
