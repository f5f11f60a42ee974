"""``userdp evaluate``: a model's loss on people's text: exact for its operator, or under DP."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from userdp.cli.output import Answer, for_whom
from userdp.reporting.table import Table, table_of
from userdp.vocabulary import epsilon_up

SplitName = Literal["held-out-users", "held-out-examples", "train"]


def evaluate(
    run: Path,
    /,
    *,
    store: Path,
    split: list[SplitName] | None = None,
    base: Annotated[bool, Parameter(negative="--no-base")] = True,
    micro_batch: int = 32,
    most_users: int | None = None,
    epsilon: float | None = None,
    loss_bound: float | None = None,
    difference_bound: float | None = None,
    device: str = "auto",
) -> Answer:
    """Measure a run's loss and perplexity on people's text: exactly (operator-only), or under DP.

    By split, per token and per user, next to the model that the run began from. Without --epsilon
    the numbers are exact, so no epsilon covers them: they are appended to RUN/operator.jsonl, which
    is for the operator only. With it, the model's mean loss per user, and the mean difference to
    the base model's, are released after they were charged in the store's privacy ledger; they stand
    in the run's ledger, with what they cost together with the model, and may be published.

    Args:
        run: the folder of a finished run.
        store: the user store to measure on.
        split: held-out-users (nothing of theirs was trained on), held-out-examples (of training
            users) or train; may be repeated. By default both held-out parts, and with --epsilon
            held-out-users.
        base: also measure the model that the run began from, and the difference of each user's
            two losses, with its standard error (the default).
        micro_batch: examples in one pass.
        most_users: read at most so many users of a split, chosen by a hash of the user.
        epsilon: release under DP at this price, per user, add-or-remove, beyond the run's own.
        loss_bound: with --epsilon, a public bound in nats per token: a larger loss counts as the
            bound. By default the loss of guessing all tokens of the vocabulary alike.
        difference_bound: with --epsilon, a public bound on how much a user's loss differs from that
            under the base model, stated before anything is measured: more counts as so much. By
            default 1 nat per token.
        device: auto (cuda where there is one, else cpu), cpu, cuda or cuda:N.
    """
    from userdp.api import evaluate as api

    measured = api.evaluate(
        run,
        store=store,
        split=split,
        base=base,
        micro_batch=micro_batch,
        most_users=most_users,
        epsilon=epsilon,
        loss_bound=loss_bound,
        difference_bound=difference_bound,
        device=device,
    )
    released = measured.released
    parts = _exact(list(measured.splits)) if released is None else _released(released)
    return Answer(values=measured.to_dict(), parts=parts)


_MEASURES = {
    "loss": ("loss", ".4f", "nats per token"),
    "perplexity": ("perplexity", ".1f", "the exponential of the loss"),
    "user_loss": ("loss per user", ".4f", "everybody counts the same"),
}
"""What of an evaluation is shown: the key, its heading, its format, and what it is."""
_MODELS = {"base": "before", "model": "after"}
_WIDTH = 80
"""Everything here fits a terminal of so many columns, and no line breaks inside a word."""


def _exact(splits: list[dict[str, Any]]) -> Iterator[Table | str]:
    quantiles, shown = list(splits[0]["model"]["user_quantiles"]), _MEASURES.items()
    words = "exact numbers about people's text, which no epsilon covers"
    yield f"{_wrapped(for_whom(operator_only=True, why=words))}\n"
    for part in splits:
        yield table_of(
            [(of, part[of]) for of in _MODELS if of in part],
            {
                "model": lambda one: _MODELS[one[0]],
                **{heading: partial(_number, [name], shape) for name, (heading, shape, _) in shown},
                **{name: partial(_number, ["user_quantiles", name], ".3f") for name in quantiles},
            },
            caption=f"{part['split']}: {part['users']:,} users, {part['examples']:,} examples",
        )
        if "difference" in part:
            found = part["difference"]
            told = _compared(found["user_loss"], found["standard_error"])
            yield _wrapped(f"{told} Better for {found['better_for']:.0%} of the users.")
        yield ""
    meanings = "; ".join(f"{heading}: {meaning}" for _, (heading, _, meaning) in shown)
    yield _wrapped(f"{meanings}; p5 to p95: quantiles of the users' own losses.")


def _number(path: list[str], shape: str, one: tuple[str, dict[str, Any]]) -> str:
    value: Any = one[1]
    for name in path:
        value = value[name]
    return format(value, shape)


def _released(released: dict[str, Any]) -> Iterator[Table | str]:
    model, difference = released["model"], released.get("difference")
    yield Table(
        caption=f"{released['split']}, under DP",
        rows=[
            (
                "loss per user, after",
                f"{model['user_loss']:.4f} ± {model['standard_error']:.4f} (noise)",
            ),
            ("perplexity, after", f"{model['perplexity']:.1f}"),
        ],
    )
    if difference is not None:
        told = _compared(difference["user_loss"], difference["standard_error"])
        yield _wrapped(
            f"{told} Its noise is ± {difference['noise_error']:.4f} of that; a user's difference "
            f"counts as at most {difference['bound']:g}, either way."
        )
    yield ""
    yield _wrapped(
        f"({epsilon_up(released['epsilon'])}, 0)-DP per user, add-or-remove, beyond the run's own "
        "epsilon; charged in the store's privacy ledger. A loss over "
        f"{released['loss_bound']:.4g} counts as that."
    )
    yield _wrapped(
        for_whom(
            operator_only=False,
            why="released under DP, at this price together with the run's own claim",
        )
    )


def _compared(difference: float, error: float | None) -> str:
    """Which model is better, by the mean over users of the difference of their two losses."""
    told = f"After less before, user by user: {difference:+.4f}"
    if error is None:
        return f"{told}, of a single user."
    told += f" ± {error:.4f} nats per token (one standard error)"
    if abs(difference) < 2 * error:
        return f"{told}: not told apart from no difference."
    return f"{told}: {'better' if difference < 0 else 'worse'} than before."


def _wrapped(text: str) -> str:
    return textwrap.fill(text, _WIDTH, break_long_words=False, break_on_hyphens=False)
