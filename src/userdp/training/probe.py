"""Measure gradient norms on a store's users, for the planner."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from userdp.claims.claims import compose
from userdp.data.progress import NoProgress, Progress, Uncounted
from userdp.data.splits import Split
from userdp.data.store import StoreSplit, UserStore
from userdp.errors import UseError
from userdp.gradients import Units
from userdp.gradients.probe import ProbedNorms, probe_norms
from userdp.ledger import StoreLedger
from userdp.planning.norms import GradientNorms, NormSource
from userdp.plans import MadeFor
from userdp.queries.medians import charge_medians, draw_medians
from userdp.sampling.coins import secret_generator
from userdp.training.collate import gather_units
from userdp.training.config import TrainConfig
from userdp.training.devices import AUTO, choose_device
from userdp.training.lora import add_adapters
from userdp.training.losses import build_loss
from userdp.training.models import load_model
from userdp.training.origin import ledger_id, lineage_of_model, made_with
from userdp.vocabulary import require_count

_QUARTILES = {"p25": 0.25, "p75": 0.75}


def probe_store(
    store: UserStore,
    config: TrainConfig,
    *,
    source: NormSource = NormSource.HELD_OUT,
    users: int = 128,
    max_group_size: int = 16,
    population: int | None = None,
    epsilon: float | None = None,
    seed: int | None = None,
    device: str = AUTO,
    progress: Progress | None = None,
) -> GradientNorms:
    """Median gradient norms of ``users`` random users, for G = 1, 2, 4, … ``max_group_size``.

    Guarantee: with the source ``DP_RELEASE`` the result is (``epsilon``, 0)-DP per user,
    add-or-remove: each training user is measured by a coin of their own, and the medians are drawn
    by `userdp.queries.medians`, charged before anything is measured. No other source promises
    anything.

    Each user's examples are taken in a random order; one pass over the first ``max_group_size`` of
    them gives the norms for every G.

    Args:
        store: whose users are measured: those held out (``HELD_OUT``), else its training users,
            who are public people (``PUBLIC``) or private (``NON_PRIVATE``, ``DP_RELEASE``).
        config: the model, its precision and adapters; the weights are those training begins with.
        source: what the numbers are to be called; no claim covers any but public ones.
        users: how many to draw, without replacement; all if there are fewer. For ``DP_RELEASE``
            how many are expected: each is measured with probability ``users / population``.
        max_group_size: the largest G.
        population: the declared number of users; only for ``DP_RELEASE``.
        epsilon: what all medians together cost; only for ``DP_RELEASE``.
        seed: of the users and examples drawn; the operating system's by default.
        device: auto (cuda where there is one, else cpu), cpu, cuda or cuda:N.
        progress: is told how many users are done; of a DP release, whose draw depends on how many
            there are, no number.

    Raises:
        UseError: there are no such users, the model does not fit the store, a number is out of
            range, or an argument of the one kind of source is given for the other.

    Source: Charles et al. 2024, Equation 8 and Appendix F.1 (128 users, the median).
    """
    require_count("users", users)
    grid, computes = power_grid(max_group_size), choose_device(device)
    under_dp = source is NormSource.DP_RELEASE
    if not under_dp and (population is not None or epsilon is not None):
        raise UseError(
            f"a population and an epsilon are for DP releases, and the source is {source}",
            hint="name the source dp-release, or leave both out",
        )
    if under_dp and (population is None or epsilon is None):
        raise UseError(
            "a DP release of gradient norms needs the declared number of users and an epsilon",
            hint="--source dp-release --population 20000 --users 2000 --epsilon 0.2",
        )
    if under_dp and seed is not None:
        raise UseError(
            "a DP release takes no seed: under known coins, whose examples are drawn would depend "
            "on who else is there",
            hint="leave --seed out",
        )
    split = store.split(Split.HELD_OUT_USERS if source is NormSource.HELD_OUT else Split.TRAIN)
    if not under_dp and not len(split.counts):
        raise UseError(
            f"the store at {store.path} has no users in its split {split.name}: there is nothing "
            "to measure",
            hint="prepare it with --held-out-users 0.1, or probe a store of public text with "
            "--source public",
        )
    # Before anything is charged: a model that does not fit must cost nothing.
    base = load_model(config, store)
    weights = made_with(base, config)
    origin = lineage_of_model(base, config, store)
    if under_dp and not math.isfinite(compose(origin).epsilon) and origin.parts:
        raise UseError(
            f"nothing is claimed of the model {config.model!r}: its weights may hold people's text "
            "as it is, so that the price of a release would be no bound",
            hint="measure another model, or other people: --source held-out-users",
        )
    model = add_adapters(base, config).to(computes)
    loss = build_loss(config, model)
    reporter = progress or NoProgress()
    if under_dp:
        reporter = Uncounted(reporter)
    if source not in (NormSource.PUBLIC, NormSource.DP_RELEASE):
        StoreLedger(store.path).look("probe")

    def made_for() -> MadeFor:
        """Public people are not those of the store that the norms will be used for."""
        return weights if source is NormSource.PUBLIC else replace(weights, store=ledger_id(store))

    def measure(chosen: NDArray[np.int64], draw: np.random.Generator) -> ProbedNorms:
        """Each user's norms: a function of that user's examples and of coins."""
        units = draw_units(split, chosen, most=grid[-1], draw=draw).to(computes)
        reporter.stage("probe", len(units))
        return probe_norms(model, loss, units, group_sizes=grid, done=reporter.at)

    if population is not None and epsilon is not None:
        require_count("population", population)
        subject = f"median gradient norms at G = {', '.join(map(str, grid))}"
        query_id = charge_medians(store, epsilon=epsilon, subject=subject, of=origin)
        coins = secret_generator()
        # A coin for each user, not a sample of fixed size: whether one is measured depends on no
        # other user.
        chosen = np.flatnonzero(coins.random(len(split.counts)) < min(1.0, users / population))
        norms = measure(chosen, coins).users.numpy() if len(chosen) else np.zeros((0, len(grid)))
        columns = {str(size): norms[:, column] for column, size in enumerate(grid)}
        medians = draw_medians(columns, epsilon=epsilon, query_id=query_id).medians
        return GradientNorms(
            model=Path(config.model).name,
            users=users,
            user_norms={size: medians[str(size)] for size in grid},
            example_norm=medians["1"],  # that of G = 1, so it costs nothing more
            source=source,
            ledger_line=query_id,
            made_for=made_for(),
        )
    draw = np.random.default_rng(seed)
    chosen = draw.permutation(len(split.counts))[:users]
    probed = measure(chosen, draw)
    return GradientNorms(
        model=Path(config.model).name,
        users=len(chosen),
        user_norms={size: probed.user_median(size) for size in grid},
        example_norm=probed.example_median(),
        source=source,
        quantiles=None if source is NormSource.PUBLIC else _quartiles(probed),
        median_examples_per_user=max(1, int(np.median(split.counts[chosen]))),
        made_for=made_for(),
    )


def draw_units(
    split: StoreSplit, chosen: NDArray[np.int64], *, most: int, draw: np.random.Generator
) -> Units:
    """These users of a split as units, each with at most ``most`` examples in random order."""
    orders = [draw.permutation(int(count))[:most] for count in split.counts[chosen]]
    sizes = np.array([len(order) for order in orders], dtype=np.int64)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    return gather_units(split, np.repeat(chosen, sizes), np.concatenate(orders), offsets)


def power_grid(largest: int) -> tuple[int, ...]:
    """1, 2, 4, … up to ``largest``, and ``largest`` itself.

    >>> power_grid(12)
    (1, 2, 4, 8, 12)
    """
    require_count("max_group_size", largest, at_most=10**6)
    powers = [2**power for power in range(largest.bit_length()) if 2**power < largest]
    return (*powers, largest)


def _quartiles(probed: ProbedNorms) -> dict[str, dict[str, float]]:
    """How far the norms of users spread, by group size; operator-only."""
    return {
        name: {
            str(size): float(norms[norms.isfinite()].quantile(level))
            for size, norms in zip(probed.group_sizes, probed.users.T, strict=True)
        }
        for name, level in _QUARTILES.items()
    }
