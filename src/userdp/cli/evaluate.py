"""``userdp evaluate``: a model's loss on people's text: exact for its operator, or under DP."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter
from rich.console import Console
from rich.table import Table

from userdp.cli.output import emit
from userdp.errors import UseError

SplitName = Literal["held-out-users", "held-out-examples", "train"]


def evaluate(
    run: Path,
    /,
    *,
    store: Path,
    split: list[SplitName] | None = None,
    base: Annotated[bool, Parameter(negative="--no-base")] = True,
    batch: int = 32,
    most_users: int | None = None,
    epsilon: float | None = None,
    loss_bound: float | None = None,
    json: bool = False,
) -> None:
    """Measure a run's loss and perplexity on people's text: exactly (operator-only), or under DP.

    By split, per token and per user, next to the model that the run began from. Without --epsilon
    the numbers are exact, so no epsilon covers them: they are appended to RUN/operator.jsonl, for
    the operator alone. With it, each model's mean loss per user is released, after it was charged
    in the store's privacy ledger; it stands in RUN/releases.jsonl and may be published.

    Args:
        run: the folder of a finished run.
        store: the user store to measure on.
        split: held-out-users (nothing of theirs was trained on), held-out-examples (of training
            users) or train; may be repeated. By default both held-out parts, and with --epsilon
            held-out-users.
        base: also measure the model that the run began from.
        batch: examples in one pass.
        most_users: read so many users of a split alone, chosen by a hash of the user.
        epsilon: release under DP at this price, per user, add-or-remove, beyond the run's own.
        loss_bound: with --epsilon, a public bound in nats per token, larger losses count as so
            much; by default that of guessing all tokens of the vocabulary alike.
        json: print one JSON object on stdout.
    """
    from userdp.data.splits import Split
    from userdp.data.store import UserStore
    from userdp.training.evaluate_run import (
        evaluate_splits,
        held_out_splits,
        release_evaluation,
    )

    splits = tuple(dict.fromkeys(Split(name) for name in split or ()))
    if epsilon is not None:
        if most_users is not None:
            raise UseError(
                "--most-users reads the smallest hashes, so that one user more takes another's "
                "place: no epsilon for one user would hold",
                hint="leave --most-users out",
            )
        if len(splits) > 1:
            raise UseError("--epsilon releases one split at a time", hint="name one --split")
        released = release_evaluation(
            run,
            UserStore.open(store),
            splits[0] if splits else Split.HELD_OUT_USERS,
            epsilon=epsilon,
            loss_bound=loss_bound,
            with_base=base,
            batch=batch,
        )
        answer = {"run": str(run), "operator_only": False, **released}
        emit(answer, json=json, render=lambda console: _print_released(console, answer))
        return
    if loss_bound is not None:
        raise UseError("--loss-bound is for a release under DP", hint="give --epsilon as well")
    opened = UserStore.open(store, fixed_graph=True)  # measuring claims nothing
    found = evaluate_splits(
        run,
        opened,
        splits or held_out_splits(opened),
        with_base=base,
        batch=batch,
        most_users=most_users,
    )
    result = {"run": str(run), "operator_only": True, "splits": found}
    emit(result, json=json, render=lambda console: _print(console, found))


def _print(console: Console, splits: list[dict[str, Any]]) -> None:
    console.print("[bold]Operator-only[/]: exact numbers about people's text.\n")
    table = Table(box=None, pad_edge=False)
    for name in ("split", "model"):
        table.add_column(name)
    columns = ("loss", "perplexity", "loss per user")
    quantiles = list(splits[0]["model"]["user_quantiles"])
    for name in (*columns, *quantiles):
        table.add_column(name, justify="right")
    for found in splits:
        for of in ("base", "model"):
            if of in found:
                values = found[of]
                table.add_row(
                    found["split"],
                    {"base": "before", "model": "after"}[of],
                    f"{values['loss']:.4f}",
                    f"{values['perplexity']:.1f}",
                    f"{values['user_loss']:.4f}",
                    *(f"{values['user_quantiles'][name]:.3f}" for name in quantiles),
                )
    console.print(table)
    console.print(
        "\nloss: nats per token. loss per user: everybody counts the same; p5 to p95 are quantiles "
        "of the users' own losses.",
        soft_wrap=True,
    )
    for found in splits:
        console.print(
            f"{found['split']}: {found['users']:,} users, {found['examples']:,} examples.",
            markup=False,
        )


def _print_released(console: Console, found: dict[str, Any]) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column(found["split"])
    for name in ("loss per user", "its noise", "perplexity"):
        table.add_column(name, justify="right")
    for of in ("base", "model"):
        if of in found:
            values = found[of]
            table.add_row(
                {"base": "before", "model": "after"}[of],
                f"{values['user_loss']:.4f}",
                f"± {values['standard_error']:.4f}",
                f"{values['perplexity']:.1f}",
            )
    console.print(table)
    console.print(
        f"({found['epsilon']:g}, 0)-DP per user, add-or-remove, beyond the run's own epsilon; "
        f"charged in the store's privacy ledger. Losses over {found['loss_bound']:.4g} count as "
        "so much.",
        soft_wrap=True,
        markup=False,
    )
