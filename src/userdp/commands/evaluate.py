"""``userdp.evaluate``: a model's loss on people's text: exact for its operator, or under DP."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from userdp.commands.progress import shown
from userdp.commands.run import Place, folder_of, opened
from userdp.commands.setting import Section, read, section_of
from userdp.commands.words import for_whom
from userdp.data.progress import Progress
from userdp.data.splits import Split
from userdp.errors import UseError
from userdp.interrupts import told as told_of
from userdp.reporting.table import Table, table_of
from userdp.training.devices import choose_device
from userdp.training.evaluation import evaluate_splits, held_out_splits, release_evaluation
from userdp.training.personalization import LocalTraining, personalize_run
from userdp.vocabulary import epsilon_up, require_count

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluated:
    """What was measured.

    Args:
        run: its folder.
        operator_only: whether the numbers are exact, so that no ε covers them.
        splits: exact numbers by split; none of a release.
        released: what may be published; None where the numbers are exact.
        personalized: what held-out users gain from a model of their own, if that was asked.
    """

    run: Path
    operator_only: bool
    splits: tuple[dict[str, Any], ...] = ()
    released: dict[str, Any] | None = None
    personalized: dict[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """What ``userdp evaluate --json`` prints."""
        told = self.released or self.personalized or {"splits": list(self.splits)}
        return {"run": str(self.run), "operator_only": self.operator_only, **told}

    def to_pandas(self) -> pd.DataFrame:
        """One row for each split and model ("base" is what the run began from)."""
        import pandas as pd

        parts = self.splits if self.released is None else (self.released,)
        rows = [
            {"split": part["split"], "of": of, **part[of]}
            for part in parts
            for of in ("base", "model")
            if of in part
        ]
        return pd.json_normalize(rows, sep=".")


def evaluate(
    run: Place,
    *,
    store: str | os.PathLike[str],
    split: Sequence[Split] = (),
    base: bool = True,
    micro_batch: int = 32,
    most_users: int | None = None,
    epsilon: float | None = None,
    loss_bound: float | None = None,
    difference_bound: float | None = None,
    personalize: bool = False,
    lora_rank: int | None = None,
    device: str = "auto",
    settings: Sequence[str] = (),
    progress: Progress | None = None,
) -> Evaluated:
    """Measure a run's loss and perplexity on people's text: exactly (operator-only), or under DP.

    By split, per token and per user, next to the model that the run began from. Without epsilon
    the numbers are exact, so no epsilon covers them: they are appended to RUN/operator.jsonl, which
    is for the operator only. With it, the model's mean loss per user, and the mean difference to
    the base model's, are released after they were charged in the store's privacy ledger, as
    (epsilon, 0)-DP per user; they stand in the run's ledger, with what they cost together with the
    model, and may be published.

    Args:
        run: a finished run, or its folder.
        store: the user store to measure on.
        split: held-out-users (nothing of theirs was trained on), held-out-examples (of training
            users) or train, one or several; by default both held-out parts, and with epsilon
            held-out-users.
        base: also measure the model that the run began from, and the difference of each user's
            two losses, with its standard error.
        micro_batch: examples in one pass.
        most_users: read at most so many users of a split, chosen by a hash of the user.
        epsilon: release under DP at this price, per user, add-or-remove.
        loss_bound: with epsilon, a public bound in nats per token: a larger loss counts as the
            bound. By default the loss of guessing all tokens of the vocabulary alike.
        difference_bound: with epsilon, a public bound on how much a user's loss differs from that
            under the base model, stated before anything is measured: more counts as so much. By
            default 1 nat per token.
        personalize: measure what held-out users gain from a model of their own: local SGD on half
            of each user's examples, then the loss on the other half, with and without (Charles et
            al. 2024, Appendix G.2). Nothing is released or charged.
        lora_rank: personalize adapters of this rank in place of all weights.
        device: auto (cuda where there is one, else cpu), cpu, cuda or cuda:N.
        settings: of the local training, as local.epochs=2.
        progress: is told how far it is (with epsilon no number, since how many users there are
            is private); by default a bar, or lines where stderr is no terminal.

    Raises:
        UseError: an argument is out of range, or nothing may be released of this model.
    """
    require_count("--micro-batch", micro_batch)  # before a look is noted in the store's ledger
    choose_device(device)
    path = folder_of(run)
    local = read(settings, sections())["local"]
    if local and not personalize:
        raise UseError("local.… says nothing without --personalize", hint="give it as well")
    people = opened(Path(store), fixed_graph=epsilon is None)  # exact numbers claim nothing
    names = (split,) if isinstance(split, str) else tuple(split)
    splits = tuple(dict.fromkeys(Split(name) for name in names))
    if epsilon is None:
        if loss_bound is not None:
            raise UseError("--loss-bound is for a release under DP", hint="give --epsilon as well")
        if difference_bound is not None:
            raise UseError(
                "--difference-bound is for a release under DP", hint="give --epsilon as well"
            )
        with told_of("before its end", resume=False), shown(progress) as bar:
            if personalize:
                gained = personalize_run(
                    path,
                    people,
                    LocalTraining(**local),
                    with_base=base,
                    lora_rank=lora_rank,
                    most_users=most_users,
                    device=device,
                    progress=bar,
                )
                return Evaluated(run=path, operator_only=True, personalized=gained)
            measured = evaluate_splits(
                path,
                people,
                splits or held_out_splits(people),
                with_base=base,
                batch=micro_batch,
                most_users=most_users,
                device=device,
                progress=bar,
            )
        return Evaluated(run=path, operator_only=True, splits=tuple(measured))
    if personalize:
        raise UseError("--personalize measures exactly: nothing of it is released under DP")
    if most_users is not None:
        raise UseError(
            "--most-users reads the smallest hashes, so that one user more takes another's place: "
            "no epsilon for one user would hold",
            hint="leave --most-users out",
        )
    if difference_bound is not None and not base:
        raise UseError(
            "--difference-bound is for the difference to the base model, and --no-base leaves that "
            "out",
            hint="leave one of them out",
        )
    if len(splits) > 1:
        raise UseError("--epsilon releases one split at a time", hint="name one --split")
    for name, bound in (("--loss-bound", loss_bound), ("--difference-bound", difference_bound)):
        _require_round(name, bound)
    left = "before its end: what was charged stays charged"
    with told_of(left, resume=False), shown(progress) as bar:
        released = release_evaluation(
            path,
            people,
            splits[0] if splits else Split.HELD_OUT_USERS,
            epsilon=epsilon,
            loss_bound=loss_bound,
            difference_bound=difference_bound,
            with_base=base,
            batch=micro_batch,
            device=device,
            progress=bar,
        )
    return Evaluated(run=path, operator_only=False, released=released)


def sections() -> dict[str, Section]:
    """What ``--set`` reaches."""
    return {"local": section_of(LocalTraining)}


def _require_round(name: str, bound: float | None) -> None:
    """`UseError` of a bound with more digits than anybody states without having looked.

    A bound is published beside the answer. One that was copied from an exact loss would publish
    that loss, and no ε covers it.
    """
    if bound is not None and math.isfinite(bound) and bound != float(f"{bound:.2g}"):
        raise UseError(
            f"{name} has more than two digits that count: {bound!r}. It is published, and says "
            "something exact about these people if it was read off their losses",
            hint=f"state one without a look, such as {float(f'{bound:.1g}'):g}",
        )


def in_words(measured: Evaluated) -> Iterator[Table | str]:
    """Each split's losses before and after, or what was released; and for whom they are."""
    released = measured.released
    if released is not None:
        model = released["model"]
        yield (
            f"{released['split']}, under DP: loss per user {model['user_loss']:.4f} ± "
            f"{model['standard_error']:.4f} (noise), perplexity {model['perplexity']:.1f}"
        )
        if (found := released.get("difference")) is not None:
            yield (
                f"{_compared(found['user_loss'], found['standard_error'])} Its noise is ± "
                f"{found['noise_error']:.4f} of that; a user's difference counts as at most "
                f"{found['bound']:g}, either way."
            )
        yield (
            f"({epsilon_up(released['epsilon'])}, 0)-DP per user, add-or-remove, beyond the run's "
            "own epsilon; charged in the store's privacy ledger. A loss over "
            f"{released['loss_bound']:.4g} counts as that."
        )
        yield for_whom(
            operator_only=False,
            why="released under DP, at this price together with the run's own claim",
        )
        return
    why = "exact numbers about people's text, which no epsilon covers"
    yield for_whom(operator_only=True, why=why)
    if measured.personalized is not None:
        yield from _personalized(measured.personalized)
        return
    for part in measured.splits:
        quantiles = list(part["model"]["user_quantiles"])
        yield Table(
            caption=f"{part['split']}: {part['users']:,} users, {part['examples']:,} examples",
            columns=("model", "loss", "perplexity", "loss per user", *quantiles),
            rows=[
                (
                    name,
                    f"{part[of]['loss']:.4f}",
                    f"{part[of]['perplexity']:.1f}",
                    f"{part[of]['user_loss']:.4f}",
                    *(f"{part[of]['user_quantiles'][at]:.3f}" for at in quantiles),
                )
                for of, name in (("base", "before"), ("model", "after"))
                if of in part
            ],
        )
        if (found := part.get("difference")) is not None:
            told = _compared(found["user_loss"], found["standard_error"])
            yield f"{told} Better for {found['better_for']:.0%} of the users."
    yield "Losses in nats per token; p5 to p95: quantiles of the users' own losses."


def _personalized(result: dict[str, Any]) -> Iterator[Table | str]:
    """The loss on each user's other half, at every learning rate, without and with."""
    yield table_of(
        [(name, row) for name in ("base", "model") for row in result.get(name, ())],
        {
            "model": lambda one: one[0],
            "learning rate": lambda one: f"{one[1]['learning_rate']:g}",
            "loss without": lambda one: _loss(one[1]["loss_without"]),
            "loss with": lambda one: _loss(one[1]["loss_with"]),
            "per user without": lambda one: _loss(one[1]["user_loss_without"]),
            "per user with": lambda one: _loss(one[1]["user_loss_with"]),
            "gain": lambda one: f"{one[1]['users_who_gain']} of {one[1]['measured_users']}",
        },
    )
    yield (
        f"{result['users']:,} held-out users, {result['adapted']}, {result['epochs']} epochs; left "
        f"out: {result['users_without_two_examples']:,} users with a single example, "
        f"{result['examples_over_the_cap']:,} examples over the cap. The learning rates are "
        "compared on the very halves that are measured."
    )


def _loss(value: float | None) -> str:
    return "diverged" if value is None else f"{value:.4f}"


def _compared(difference: float, error: float | None) -> str:
    """Which model is better, by the mean over users of the difference of their two losses."""
    told = f"After less before, user by user: {difference:+.4f}"
    if error is None:
        return f"{told}, of a single user."
    told += f" ± {error:.4f} nats per token (one standard error)"
    if abs(difference) < 2 * error:
        return f"{told}: not told apart from no difference."
    return f"{told}: {'better' if difference < 0 else 'worse'} than before."
