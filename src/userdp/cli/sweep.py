"""``userdp tune``: train a grid of settings, choose one, and claim what choosing costs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

from cyclopts import Parameter

from userdp.cli.output import Answer, print_note
from userdp.codec import encode
from userdp.commands.progress import shown
from userdp.errors import UseError
from userdp.reporting.table import Table, table_of
from userdp.training.config import OptimizerName, TrainConfig, train_config
from userdp.vocabulary import delta_up, round_up

if TYPE_CHECKING:
    from userdp.accounting.repetitions import Repetitions
    from userdp.sweeping.request import SweepRequest

_Hidden = Parameter(parse=False)
_Several = Parameter(consume_multiple=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class FixedConfig(TrainConfig):
    """What every candidate shares: the options of train but for those that a sweep varies."""

    learning_rate: Annotated[float, _Hidden] = TrainConfig().learning_rate
    optimizer: Annotated[OptimizerName, _Hidden] = TrainConfig().optimizer


# Annotations of inherited options are names of another module, which the parser would look up here.
FixedConfig.__init__.__annotations__.update(get_type_hints(FixedConfig, include_extras=True))


def sweep(
    store: Path,
    /,
    *,
    out: Path,
    plan: Annotated[list[Path] | None, _Several] = None,
    tuning: Literal["non-private", "composition", "private-selection"] | None = None,
    learning_rate: Annotated[list[float] | None, _Several] = None,
    l2_clip_norm: Annotated[list[float] | None, _Several] = None,
    optimizer: Annotated[list[OptimizerName] | None, _Several] = None,
    split: Literal["held-out-users", "held-out-examples"] = "held-out-users",
    epsilon: float | None = None,
    score_epsilon: float | None = None,
    loss_bound: float | None = None,
    mean_trials: float | None = None,
    distribution: Literal["logarithmic", "geometric", "poisson", "fixed"] | None = None,
    jobs: int = 1,
    resume: bool = False,
    device: str = "auto",
    allow_large_delta: bool = False,
    config: Annotated[FixedConfig | None, Parameter(name="*", group="Learning")] = None,
) -> Answer:
    """Train a grid of settings and choose the one of least held-out loss.

    Each candidate is a run of its own in DIR/trial-001 and on; the chosen one is copied to
    DIR/winner, whose ledger claims what --tuning costs. Killed, a sweep goes on with --resume:
    finished trials are kept, and an interrupted one goes on with its own settings.

    Args:
        store: a user store made by userdp prepare.
        out: the sweep's folder (DIR).
        plan: plan files; several compare methods, such as ULS and ELS.
        tuning: non-private: by the exact loss; the winner claims only its own run and says how it
            was chosen. composition: by DP losses; the budget is divided over all runs and scores.
            private-selection: a random number of random candidates; only the winner may be handed
            on, at the price of choosing (Papernot and Steinke 2022).
        learning_rate: values to try.
        l2_clip_norm: values to try, in place of the plan's; epsilon does not depend on it.
        optimizer: values to try.
        split: whose loss is the score.
        epsilon: of the winner, choosing included; the plan's own by default. The plan's noise is
            calibrated anew to its share.
        score_epsilon: of each score; by default a tenth of the budget for all of a fixed grid, a
            twentieth each for a private selection.
        loss_bound: a public bound in nats per token, larger losses count as so much in DP scores;
            by default that of guessing all tokens of the vocabulary alike.
        mean_trials: of the random number of candidates (private-selection).
        distribution: of that number: logarithmic (the default, mostly the cheapest for its mean),
            geometric or poisson. A fixed number has no such claim and is refused.
        jobs: trials that train at the same time, each on a GPU of its own where that is where they
            train.
        resume: go on with the interrupted sweep in --out; its options need not be given again.
        device: where the trials and their scores compute: auto (cuda where there is one, else cpu),
            cpu, cuda or cuda:N.
        allow_large_delta: begin even where a plan's delta is not below 1 over its declared
            population; see `userdp train --help`.
        config: see TrainConfig; shared by all candidates.
    """
    from userdp.data.splits import Split
    from userdp.data.store import UserStore
    from userdp.plans import Plan
    from userdp.sweeping.request import TuningMode, build_request, grid
    from userdp.sweeping.result import describe
    from userdp.sweeping.sweep import run_sweep

    opened = UserStore.open(store, fixed_graph=True)  # each plan is held against it
    request: SweepRequest | None = None
    others = (learning_rate, l2_clip_norm, optimizer, epsilon, score_epsilon, loss_bound, config)
    if resume and tuning is None and any(value is not None for value in (plan, *others)):
        raise UseError(
            "--resume goes on with what the sweep began with: these options would be ignored",
            hint="give --resume alone, or all of the options once more",
        )
    if not resume or tuning is not None:
        if tuning is None:
            raise UseError(
                "a sweep needs --tuning by name: what the winner claims depends on how it is "
                "chosen",
                hint="non-private, composition or private-selection; see `userdp tune --help`",
            )
        if not plan:
            raise UseError("a sweep needs a plan", hint="--plan plan.json, made by userdp plan")
        from userdp.commands.train import warn_of_delta
        from userdp.ledger import StoreLedger

        plans = [Plan.load(path) for path in plan]
        total = StoreLedger(opened.path).history().total_delta
        for path, one in zip(plan, plans, strict=True):
            warn_of_delta(one, path, total=total, allowed=allow_large_delta)
        request = build_request(
            opened,
            TuningMode(tuning),
            grid(
                plans,
                train_config(encode(config or FixedConfig())),
                l2_clip_norms=l2_clip_norm or [],
                axes={
                    "learning_rate": learning_rate or [],
                    "optimizer": optimizer or [],
                },
            ),
            split=Split(split),
            epsilon=epsilon,
            score_epsilon=score_epsilon,
            loss_bound=loss_bound,
            repetitions=_repetitions(tuning, mean_trials, distribution),
        )
    with shown() as bar:
        swept = run_sweep(
            opened,
            out,
            request,
            jobs=jobs,
            resume=resume,
            device=device,
            progress=bar,
            say=print_note,
        )
    result = describe(swept, opened)
    return Answer(values=result, parts=_parts(result))


def _repetitions(
    tuning: str | None, mean: float | None, distribution: str | None
) -> Repetitions | None:
    """The law of the number of candidates, if one is asked for."""
    from userdp.accounting.repetitions import PoissonNumber, TruncatedNegativeBinomial

    if tuning == "private-selection" and distribution == "fixed":
        raise UseError(
            "a fixed number of candidates has no claim by private selection: the best of K can "
            "cost K times one run, since how good it is tells how many were near it",
            hint="--tuning composition charges all of a fixed grid; or --distribution logarithmic",
        )
    if distribution == "fixed":
        return None
    if mean is None:
        if distribution is not None:
            raise UseError(
                f"--distribution {distribution} says nothing without --mean-trials",
                hint="give --mean-trials 8",
            )
        return None
    if distribution == "poisson":
        return PoissonNumber(mu=mean)
    return TruncatedNegativeBinomial.of_mean(mean, eta=1.0 if distribution == "geometric" else 0.0)


def _parts(result: dict[str, Any]) -> Iterator[Table | str]:
    def claimed(epsilon: float) -> str:
        return "none" if math.isinf(epsilon) else round_up(epsilon)

    if result["operator_only"]:
        yield "Operator-only: the losses are exact numbers about people's text.\n"
    if result["trials"]:
        yield _trials(result["trials"])
        yield _noise(result)
        yield ""
    rows = [("chosen by", result["chosen_by"])]
    if result["winner"] is None:
        rows.append(("winner", "none: no candidate was drawn, so nothing was trained"))
    else:
        settings = {k: str(v) for k, v in result["settings"].items() if v is not None}
        rows += [
            ("winner", result["winner"]),
            *((name.replace("_", " "), value) for name, value in settings.items()),
            *(
                [("score", f"{result['score']:.4g} ± {result['score_error']:.4g} (its noise)")]
                if result["tuning"] == "private-selection" and result["score_error"] is not None
                else []
            ),
            ("epsilon", claimed(float(result["epsilon"]))),
            ("delta", delta_up(result["delta"])),
            *(
                (name, str(result[name]))
                for name in ("unit", "adjacency", "accountant", "composition")
            ),
        ]
    rows.append(("the store's epsilon", claimed(float(result["store_epsilon"]))))
    yield Table(rows=rows, strong=[n for n, row in enumerate(rows) if row[0] == "epsilon"])
    if result["winner"] is not None:
        yield f"\nClaim: {result['headline']}."
    if result["tuning"] == "private-selection":
        yield (
            "\nOnly winner/ may be handed on: the other trials, their number, and how long all of "
            "it took are for the operator only."
        )


def _with_error(value: float | None, error: float | None, sign: str) -> str | None:
    """A number with its standard error."""
    if value is None:
        return None
    return f"{value:{sign}.4f}" + ("" if error is None else f" ± {error:.4f}")


def _noise(result: dict[str, Any]) -> str:
    """Whether the winner is better than the others by more than chance explains."""
    near = result["inside_the_noise"]
    if len(result["trials"]) < 2:
        return ""
    if not near:
        return "The winner is ahead of every other trial by two standard errors or more."
    which = f"trial {near[0]} is" if len(near) == 1 else f"trials {_listed(near)} are"
    return (
        f"The winner is inside the noise: {which} behind it by less than two standard errors, so "
        "that another draw could have chosen differently."
    )


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers[:-1])) + f" and {numbers[-1]}"


def _trials(trials: list[dict[str, Any]]) -> Table:
    """The trials, with the settings that differ between them."""
    names = [
        name
        for name in ("algorithm", "l2_clip_norm", "learning_rate", "optimizer")
        if len({trial[name] for trial in trials}) > 1
    ]
    return table_of(
        trials,
        {
            "trial": "trial",
            **{name.replace("_", " "): name for name in names},
            "loss per user": lambda trial: _with_error(trial["loss"], trial["standard_error"], ""),
            "behind the winner": lambda trial: _with_error(
                trial["behind"], trial["behind_error"], "+"
            ),
            "note": lambda trial: trial["note"] or "",
        },
    )
