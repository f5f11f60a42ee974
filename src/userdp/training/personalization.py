"""Per-user adaptation: local SGD on half of each held-out user's examples, measured on the rest.

Source: Charles et al. 2024, Appendix G.2: four local epochs of SGD on half of each test user's
examples, then the loss on the other half, with and without. Exact, so operator-only: nothing of
it is released, and the users were never trained on.

One user follows another. Adapting several users in one pass (`torch.func.vmap` over stacked
weights) was 1.3 to 2.5 times as fast, but only with rows packed behind a block-diagonal mask.
Padded rows, which take half the code, were slower than one user after another (0.75 to 0.9 times).
The packing took three times the code, and models whose attention can be traced; an evaluation of
some hundred users is not worth that.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from userdp.core.errors import UseError
from userdp.core.stages import Progress
from userdp.core.vocabulary import require_count, require_positive
from userdp.data.splits import Split
from userdp.data.user_store import StoreSplit, UserStore
from userdp.gradients import causal_lm_loss, require_uncoupled, trainable_parameters
from userdp.ledger import RunFolder, StoreLedger
from userdp.training.collate import gather_units
from userdp.training.config import TrainConfig
from userdp.training.devices import AUTO, choose_device
from userdp.training.lora import choose_trained
from userdp.training.released_model import released_models
from userdp.training.store_losses import losses_of, mean_loss, users_by_hash

_SALT = 0x706572736F6E  # public: halves and orders are the same on every machine
_QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalTraining:
    """The local training that gives each user models of their own.

    Args:
        learning_rate: of plain SGD; each gives models of its own, and none is chosen for you.
        epochs: passes over the user's half.
        batch_size: examples of a local step; its gradient is their mean.
        most_examples: of a user, both halves together; those over it are left out, and counted.
    """

    learning_rate: tuple[float, ...] = (0.03, 0.1, 0.3)
    epochs: int = 4
    batch_size: int = 8
    most_examples: int = 64

    def __post_init__(self) -> None:
        for rate in self.learning_rate or (0.0,):
            require_positive("learning_rate", rate)
        require_count("epochs", self.epochs)
        require_count("batch_size", self.batch_size)
        require_count("most_examples", self.most_examples, at_least=2)


def halves(
    split: StoreSplit, user: int, how: LocalTraining
) -> tuple[NDArray[np.int64], NDArray[np.int64], list[NDArray[np.int64]]]:
    """A user's examples to adapt on and to measure on, and places in the first, for each step.

    Of n examples, in an order drawn from the user's public hash, the first ``n // 2`` train.
    """
    draw = np.random.default_rng([*split.user_hashes[user].tolist(), _SALT])
    order = draw.permutation(split.counts[user])[: how.most_examples]
    train, test = np.split(order, [len(order) // 2])
    ends = range(how.batch_size, len(train), how.batch_size)
    epochs = [np.split(draw.permutation(len(train)), ends) for _ in range(how.epochs)]
    return train, test, [batch for epoch in epochs for batch in epoch]


def personalize(
    model: nn.Module,
    split: StoreSplit,
    users: NDArray[np.int64],
    how: LocalTraining,
    *,
    progress: Progress | None = None,
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    r"""Adapt the trainable weights to each user in turn, and measure them on the user's other half.

    .. math:: \theta_u \leftarrow \theta_u - \frac{\eta}{|B|} \sum_{r \in B} \nabla \ell_r(\theta_u)

    with the loss of `userdp.gradients.causal_lm_loss`, in evaluation mode (no dropout).

    Guarantee: every user and learning rate begins from the same weights, and the model has them
    again at the end.

    Args:
        model: its parameters with ``requires_grad`` are adapted (all, or only adapters).
        split: where the rows are.
        users: int64, places in ``split``, each of a user with two examples or more.
        how: learning rates, epochs, sizes.
        progress: shows how many users are done.

    Returns:
        Each user's mean loss per target token on the half that was kept back, in nats: float64
        (users,) of the model as it is, and float64 (learning rates, users) of the user's own
        models. And int64 (users,), the target tokens measured. Operator-only.

    Raises:
        UseError: the model couples rows, or nothing of it is trainable.

    Source: Charles et al. 2024, Appendix G.2.
    """
    require_uncoupled(model)
    weights = list(trainable_parameters(model).values())
    start = [weight.detach().clone() for weight in weights]
    before, tokens = np.zeros(len(users)), np.zeros(len(users), dtype=np.int64)
    after = np.zeros((len(how.learning_rate), len(users)))
    shown = progress or Progress()
    shown.stage("personalize", len(users))
    model.eval()
    for number, user in enumerate(users.tolist()):
        train, test, steps = halves(split, user, how)
        rows = gather_units(split, np.full(len(train), user), train).to(weights[0].device)
        kept_back = np.full(len(test), user), test
        before[number], tokens[number] = mean_loss(model, split, *kept_back, batch=how.batch_size)
        for which, rate in enumerate(how.learning_rate):
            optimizer = torch.optim.SGD(weights, lr=rate)
            for batch in steps:
                optimizer.zero_grad()
                losses_of(causal_lm_loss, model, rows, batch).mean().backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            after[which, number], _ = mean_loss(model, split, *kept_back, batch=how.batch_size)
            with torch.no_grad():
                for weight, value in zip(weights, start, strict=True):
                    weight.copy_(value)
                    weight.grad = None
        shown.at(number + 1)
    return before, after, tokens


def personalize_run(
    run: Path,
    store: UserStore,
    how: LocalTraining,
    *,
    with_base: bool = False,
    lora_rank: int | None = None,
    most_users: int | None = None,
    device: str = AUTO,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """The gain of each held-out user from local SGD, at every learning rate of ``how``.

    The result, operator-only, is appended to the run's operator.jsonl.

    Args:
        run: a run's folder, finished.
        store: with the tokenizer that the run was trained on.
        how: the local training.
        with_base: also personalize the model that the run began from.
        lora_rank: adapt adapters of this rank in place of all weights.
        most_users: only the first so many users.
        device: auto (cuda where there is one, else cpu), cpu, cuda or cuda:N.
        progress: shows how many users are done.

    Returns:
        ``users``, what was left out, and for ``model`` (and ``base``) a list with one entry for
        each learning rate: token-weighted and user-weighted loss before and after, and quantiles
        over users.

    Raises:
        UseError: the run has no model, or nobody held out has two examples.
    """
    folder, computes = RunFolder(run), choose_device(device)
    models = released_models(folder, store, with_base=with_base)
    if most_users is not None:
        require_count("most_users", most_users)
    split = store.split(Split.HELD_OUT_USERS)
    users = np.flatnonzero(split.counts >= 2)
    StoreLedger(store.path).look("personalize")
    if not len(users):
        raise UseError(
            "no held-out user has two examples", hint="prepare the store with --held-out-users 0.1"
        )
    kept = np.intersect1d(users, users_by_hash(split, most_users))
    result: dict[str, Any] = {
        "users": len(kept),
        "users_left_unread": len(users) - len(kept),
        "users_without_two_examples": int((split.counts < 2).sum()),
        "examples_over_the_cap": int(np.maximum(split.counts - how.most_examples, 0).sum()),
    }
    for name, model in models.items():
        # Local SGD in bfloat16 would round small updates away, whatever the run trained in.
        trains = TrainConfig(lora_rank=lora_rank, train_all=True)
        model = choose_trained(model.float(), trains).to(computes)
        before, after, tokens = personalize(model, split, kept, how, progress=progress)
        result[name] = [
            {"learning_rate": rate, **summary(before, own, tokens)}
            for rate, own in zip(how.learning_rate, after, strict=True)
        ]
        for entry in result[name]:
            folder.log({"kind": "personalization", "of": name, **entry})
    return result


def summary(
    before: NDArray[np.float64], after: NDArray[np.float64], tokens: NDArray[np.int64]
) -> dict[str, Any]:
    """Means and quantiles at one learning rate; users without a target token are left out.

    A loss is None where the learning rate was too large and it is not finite, and where no user
    was measured.
    """
    measured = tokens > 0
    before, after, tokens = before[measured], after[measured], tokens[measured]
    gains = before - after
    finite = gains[np.isfinite(gains)]
    quantiles = {str(q): float(np.quantile(finite, q)) for q in _QUANTILES if len(finite)}

    def mean(losses: NDArray[np.float64], weights: NDArray[np.int64] | None = None) -> float | None:
        value = float(np.average(losses, weights=weights)) if len(losses) else np.nan
        return value if np.isfinite(value) else None

    return {
        "measured_users": int(measured.sum()),
        "tokens": int(tokens.sum()),
        "loss_without": mean(before, tokens),
        "loss_with": mean(after, tokens),
        "user_loss_without": mean(before),
        "user_loss_with": mean(after),
        "users_who_gain": int((gains > 0).sum()),
        "gain_quantiles": quantiles,
    }
