"""``userdp probe``: gradient norms for the planner."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from userdp.cli.output import Answer, for_whom
from userdp.reporting.table import Table

if TYPE_CHECKING:
    from userdp.plans.norms import GradientNorms

_MEANING = {
    "public": "measured on people whom you declare public: planning with it costs nothing.",
    "held-out-users": "measured exactly on held-out users, whom no claim covers.",
    "dp-release": (
        "released under DP: charged in the store's ledger, where userdp plan finds the price."
    ),
    "non-private": (
        "measured exactly on the training users: what is planned with it is not covered by the "
        "claim, and the report says so."
    ),
}


_EXACT = ("held-out-users", "non-private")
"""Sources whose norms are exact numbers of people's text."""


def probe(
    store: Path,
    /,
    *,
    out: Path,
    model: str = "bundled",
    source: Literal["held-out-users", "public", "dp-release", "non-private"] = "held-out-users",
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
) -> Answer:
    """Measure the gradient norms that userdp plan needs, at the weights training begins with.

    For G = 1, 2, 4, … the median over users of the norm of the mean gradient of at most G of a
    user's examples (Charles et al. 2024, Equation 8), and the median norm over examples.

    Args:
        store: a user store made by userdp prepare.
        out: the file of norms (norms.json) to write.
        model: "bundled", a folder of a Hugging Face causal language model, or its name on the hub.
        source: held-out-users (users the store never trains on), public (the store's training
            users are public people), dp-release (its training users under DP: --epsilon and
            --population) or non-private (its training users, exactly).
        users: how many users to draw; for dp-release, how many to expect.
        max_group_size: the largest G.
        population: for dp-release: the declared number of users; each is measured with
            probability users / population.
        epsilon: for dp-release: the price of all norms together, charged to the store.
        lora_rank: as for userdp train: the norms of the adapters' gradients.
        lora_alpha: as for userdp train.
        lora_targets: as for userdp train.
        seed: of the draw of users and examples; by default the operating system draws it.
        overwrite: replace the file at --out.
        device: auto (cuda where there is one, else cpu), cpu, cuda or cuda:N.
    """
    from userdp.api import probe as api

    norms = api.probe(
        store,
        out=out,
        model=model,
        source=source,
        users=users,
        max_group_size=max_group_size,
        population=population,
        epsilon=epsilon,
        lora_rank=lora_rank,
        lora_alpha=lora_alpha,
        lora_targets=lora_targets,
        seed=seed,
        overwrite=overwrite,
        device=device,
    )
    return Answer(
        values={
            **norms.to_dict(),
            "out": str(out),
            "operator_only": norms.source in _EXACT,
        },
        parts=_parts(norms, out),
    )


def _parts(norms: GradientNorms, out: Path) -> Iterator[Table | str]:
    yield Table(
        columns=("examples per user (G)", "norm", "to G = 1"),
        rows=[
            *(
                (str(size), f"{norm:.4g}", f"{norm / norms.user_norms[1]:.3f}")
                for size, norm in norms.user_norms.items()
            ),
            ("one example", f"{norms.example_norm:.4g}", ""),
        ],
    )
    yield f"{norms.statistic} over {norms.users} users, {_MEANING[str(norms.source)]}"
    exact = norms.source in _EXACT
    yield for_whom(
        operator_only=exact,
        why="exact numbers of people's text, which no epsilon covers"
        if exact
        else "nothing in it is an exact number of private text",
    )
    yield f"Written to {out}"
