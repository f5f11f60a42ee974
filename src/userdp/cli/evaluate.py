"""``userdp evaluate``: a model's loss on people's text: exact for its operator, or under DP."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from userdp.cli.output import Answer, for_whom
from userdp.reporting.table import Table, table_of

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
    device: str = "auto",
) -> Answer:
    """Measure a run's loss and perplexity on people's text: exactly (operator-only), or under DP.

    By split, per token and per user, next to the model that the run began from. Without --epsilon
    the numbers are exact, so no epsilon covers them: they are appended to RUN/operator.jsonl, which
    is for the operator only. With it, each model's mean loss per user is released, after it was
    charged in the store's privacy ledger; it stands in the run's ledger and may be published.

    Args:
        run: the folder of a finished run.
        store: the user store to measure on.
        split: held-out-users (nothing of theirs was trained on), held-out-examples (of training
            users) or train; may be repeated. By default both held-out parts, and with --epsilon
            held-out-users.
        base: also measure the model that the run began from.
        batch: examples in one pass.
        most_users: read at most so many users of a split, chosen by a hash of the user.
        epsilon: release under DP at this price, per user, add-or-remove, beyond the run's own.
        loss_bound: with --epsilon, a public bound in nats per token: a larger loss counts as the
            bound. By default the loss of guessing all tokens of the vocabulary alike.
        device: auto (cuda where there is one, else cpu), cpu, cuda or cuda:N.
    """
    from userdp.api import evaluate as api

    measured = api.evaluate(
        run,
        store=store,
        split=split,
        base=base,
        batch=batch,
        most_users=most_users,
        epsilon=epsilon,
        loss_bound=loss_bound,
        device=device,
    )
    released = measured.released
    parts = _exact(list(measured.splits)) if released is None else _released(released)
    return Answer(values=measured.to_dict(), parts=parts)


_MODELS = {"base": "before", "model": "after"}


def _exact(splits: list[dict[str, Any]]) -> Iterator[Table | str]:
    from userdp.training.evaluation import MEASURES

    quantiles, shown = list(splits[0]["model"]["user_quantiles"]), MEASURES.items()
    measured = [(part["split"], of, part[of]) for part in splits for of in _MODELS if of in part]
    words = "exact numbers about people's text, which no epsilon covers"
    yield f"{for_whom(operator_only=True, why=words)}\n"
    yield table_of(
        measured,
        {
            "split": lambda one: one[0],
            "model": lambda one: _MODELS[one[1]],
            **{heading: partial(_number, [name], shape) for name, (heading, shape, _) in shown},
            **{name: partial(_number, ["user_quantiles", name], ".3f") for name in quantiles},
        },
    )
    meanings = "; ".join(f"{heading}: {meaning}" for _, (heading, _, meaning) in shown)
    yield f"\n{meanings}; p5 to p95: quantiles of the users' own losses."
    for part in splits:
        yield f"{part['split']}: {part['users']:,} users, {part['examples']:,} examples."


def _number(path: list[str], shape: str, one: tuple[str, str, dict[str, Any]]) -> str:
    value: Any = one[2]
    for name in path:
        value = value[name]
    return format(value, shape)


def _released(released: dict[str, Any]) -> Iterator[Table | str]:
    yield table_of(
        [of for of in _MODELS if of in released],
        {
            released["split"]: lambda of: _MODELS[of],
            "loss per user": lambda of: f"{released[of]['user_loss']:.4f}",
            "its noise": lambda of: f"± {released[of]['standard_error']:.4f}",
            "perplexity": lambda of: f"{released[of]['perplexity']:.1f}",
        },
    )
    yield (
        f"({released['epsilon']:g}, 0)-DP per user, add-or-remove, beyond the run's own epsilon; "
        f"charged in the store's privacy ledger. A loss over {released['loss_bound']:.4g} counts "
        "as that."
    )
    yield for_whom(
        operator_only=False,
        why="released under DP, at this price together with the run's own claim",
    )
