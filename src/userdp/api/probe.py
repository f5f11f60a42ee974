"""``userdp.probe``: gradient norms for the planner."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from userdp.api.train import opened
from userdp.commands.progress import shown
from userdp.data.store import UserStore
from userdp.errors import warn
from userdp.files import require_new
from userdp.interrupts import told
from userdp.plans.norms import GradientNorms
from userdp.plans.origin import Provenance
from userdp.training.config import TrainConfig
from userdp.training.probe import probe_store

if TYPE_CHECKING:
    from userdp.data.progress import Progress


def probe(
    store: UserStore | str | Path,
    *,
    out: str | Path | None = None,
    model: str | Path = "bundled",
    source: str = "held-out-users",
    users: int = 128,
    max_group_size: int = 16,
    population: int | None = None,
    epsilon: float | None = None,
    lora_rank: int | None = None,
    lora_alpha: float | None = None,
    lora_targets: tuple[str, ...] = (),
    seed: int | None = None,
    overwrite: bool = False,
    device: str = "auto",
    progress: Progress | None = None,
) -> GradientNorms:
    """Measure the gradient norms that `userdp.plan` needs, at the weights training begins with.

    Guarantee: with ``source="dp-release"`` the norms are (``epsilon``, 0)-DP per user, charged in
    the store's ledger; with every other source but ``"public"`` they are for the operator alone.

    Args:
        store: a user store, or its folder.
        out: the file of norms to write, if any.
        model: "bundled", a folder of a Hugging Face causal language model, or its name on the hub.
        source: held-out-users, public, dp-release (needs ``population`` and ``epsilon``) or
            non-private.
        users: how many to draw; for dp-release, how many to expect.
        max_group_size: the largest G.
        population: for dp-release: the declared number of users.
        epsilon: for dp-release: the price of all norms together.
        lora_rank: as for `userdp.train`: the norms of the adapters.
        lora_alpha: as for `userdp.train`.
        lora_targets: as for `userdp.train`.
        seed: of the draw of users and examples; by default the operating system's.
        overwrite: replace the file at ``out``.
        device: auto (cuda where there is one, else cpu), cpu, cuda or cuda:N.
        progress: is told how far it is; by default a bar, or lines where stderr is no terminal.

    Raises:
        UseError: an argument is out of range, or there are no such users.
    """
    if out is not None:
        require_new(Path(out), overwrite=overwrite, name="norms.json")
    if source == Provenance.NON_PRIVATE:
        warn(
            "the norms of --source non-private are exact numbers of the training users; no epsilon "
            "covers what is chosen by them."
        )
    config = TrainConfig(
        model=str(model), lora_rank=lora_rank, lora_alpha=lora_alpha, lora_targets=lora_targets
    )
    left = "before its end: no norms were written, and what was charged stays charged"
    with told(left, resume=False), shown(progress) as bar:
        norms = probe_store(
            opened(store),
            config,
            source=Provenance(source),
            users=users,
            max_group_size=max_group_size,
            population=population,
            epsilon=epsilon,
            seed=seed,
            device=device,
            progress=bar,
        )
    if out is not None:
        norms.save(Path(out))
    return norms
