"""Per-user adaptation: local SGD on half of each held-out user's examples, many users at once.

Source: Charles et al. 2024, Appendix G.2: four local epochs of SGD on half of each test user's
examples, then the loss on the other half, with and without. Exact, so operator-only: nothing of
it is released, and the users were never trained on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from userdp.data.progress import NoProgress, Progress
from userdp.data.store import StoreSplit
from userdp.gradients import Units, require_uncoupled, trainable_parameters
from userdp.training.packing import Packed, pack
from userdp.vocabulary import require_count, require_positive

_SALT = 0x706572736F6E  # public: halves and orders are the same on every machine
_WEIGHTS = 1 << 31
"""Bytes of users' own weights and gradients held at once, at most (but for a single user)."""
_CALL_ON_CPU, _CALL_ELSEWHERE = 64, 16_384
"""What a pass costs before its first token, in tokens."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalTraining:
    """How a user's own model comes to be.

    Args:
        learning_rate: of plain SGD.
        epochs: passes over the user's half.
        batch_size: examples of a local step; its gradient is their mean.
        most_examples: of a user, both halves together; more are left out, and counted.
        parallel: users adapted at once; time and memory, never the result.
    """

    learning_rate: float = 0.1
    epochs: int = 4
    batch_size: int = 8
    most_examples: int = 64
    parallel: int = 8

    def __post_init__(self) -> None:
        require_positive("learning_rate", self.learning_rate)
        require_count("epochs", self.epochs)
        require_count("batch_size", self.batch_size)
        require_count("most_examples", self.most_examples, at_least=2)
        require_count("parallel", self.parallel)


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalUser:
    """One user's halves and local steps; a function of that user's hash and number of examples.

    Args:
        user: the index in the split.
        train: int64, examples to adapt on; at least one.
        test: int64, examples to measure on; at least one.
        batches: int64 (steps, batch_size), places in ``train``; -1 where a batch is not full.
    """

    user: int
    train: NDArray[np.int64]
    test: NDArray[np.int64]
    batches: NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Personalized:
    """Each user's mean loss per target token on the half that was kept back. Operator-only.

    Args:
        users: int64 (users,), indices in the split.
        before: float64 (users,), in nats, of the model as it is.
        after: float64 (users,), of the user's own model.
        tokens: int64 (users,), target tokens measured.
    """

    users: NDArray[np.int64]
    before: NDArray[np.float64]
    after: NDArray[np.float64]
    tokens: NDArray[np.int64]


def local_users(split: StoreSplit, how: LocalTraining) -> tuple[list[LocalUser], dict[str, int]]:
    """The users who have two examples or more, and what was left out.

    Of n examples, in an order drawn from the user's public hash, the first ``n // 2`` train.

    Returns:
        The users, and the counts ``users_without_two_examples`` and ``examples_over_the_cap``.
    """
    found = []
    alone = over = 0
    for user, count in enumerate(split.counts.tolist()):
        if count < 2:
            alone += 1
            continue
        draw = np.random.default_rng([*split.user_hashes[user].tolist(), _SALT])
        order = draw.permutation(count)[: how.most_examples]
        over += count - len(order)
        half = len(order) // 2
        found.append(
            LocalUser(
                user=user,
                train=order[:half],
                test=order[half:],
                batches=_batches(draw, half, how),
            )
        )
    return found, {"users_without_two_examples": alone, "examples_over_the_cap": over}


def _batches(draw: np.random.Generator, size: int, how: LocalTraining) -> NDArray[np.int64]:
    """Consecutive parts of ``epochs`` shuffled passes: (steps, batch_size), -1 for nothing."""
    per_epoch = -(-size // how.batch_size)
    places = np.full((how.epochs, per_epoch * how.batch_size), -1, dtype=np.int64)
    for epoch in places:
        epoch[:size] = draw.permutation(size)
    return places.reshape(-1, how.batch_size)


def personalize(
    model: nn.Module,
    split: StoreSplit,
    users: Sequence[LocalUser],
    how: LocalTraining,
    *,
    progress: Progress | None = None,
) -> Personalized:
    r"""Adapt a copy of the trainable weights to each user, and measure it on the user's other half.

    .. math:: \theta_u \leftarrow \theta_u - \frac{\eta}{|B|} \sum_{r \in B} \nabla \ell_r(\theta_u)

    with the loss of `userdp.gradients.causal_lm_loss`.

    Guarantee: equal, up to float rounding, to one user after another: users share a pass of the
    processor and nothing else. A user's rows are laid end to end, hidden from each other, so that
    users of unequal sizes need little padding. The model is left as it was.

    Args:
        model: its parameters with ``requires_grad`` are adapted (all, or adapters alone); a Hugging
            Face causal language model that takes a four-dimensional mask, after `traceable`.
        split: where the rows are.
        users: from `local_users`.
        how: learning rate, epochs, sizes.
        progress: is told how many users are done.

    Raises:
        UseError: the model couples rows, or nothing of it is trainable.

    Source: Charles et al. 2024, Appendix G.2.
    """
    require_uncoupled(model)
    parameters = {name: p.detach() for name, p in trainable_parameters(model).items()}
    bytes_each = 2 * sum(p.numel() * p.element_size() for p in parameters.values())
    together = max(1, min(how.parallel, _WEIGHTS // bytes_each))
    before, after = np.zeros(len(users)), np.zeros(len(users))
    tokens = np.zeros(len(users), dtype=np.int64)
    told = progress or NoProgress()
    told.stage("personalize", len(users))
    on_cpu = next(iter(parameters.values())).device.type == "cpu"
    done = 0
    for here in _shared_passes(
        split, users, most=together, call=_CALL_ON_CPU if on_cpu else _CALL_ELSEWHERE
    ):
        chunk = _Chunk(model, split, [users[k] for k in here], how.batch_size)
        before[here], tokens[here] = chunk.measure(None)
        after[here], _ = chunk.measure(chunk.adapt(parameters, how.learning_rate))
        done += len(here)
        told.at(done)
    return Personalized(
        users=np.array([user.user for user in users], dtype=np.int64),
        before=before,
        after=after,
        tokens=tokens,
    )


def traceable(model: nn.Module) -> nn.Module:
    """``model`` in evaluation mode, changed in place so that ``torch.func.vmap`` can trace it.

    Attention becomes "eager"; the tanh form of GELU, which `transformers` spells out in seven
    operations, becomes torch's one (the same function).
    """
    choose: Any = getattr(model, "set_attn_implementation", None)
    if choose is not None:
        choose("eager")
    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child).__name__ == "NewGELUActivation":
                setattr(module, name, nn.GELU(approximate="tanh"))
    return model.eval()


def _shared_passes(
    split: StoreSplit, users: Sequence[LocalUser], *, most: int, call: int
) -> list[list[int]]:
    """Who shares passes: groups of at most ``most``, by number, the most steps first.

    Users of a group are padded to its fullest, and each pass costs ``call`` tokens besides. Sorted
    by steps and tokens, the cheapest cut into groups of neighbours is found exactly.
    """
    steps = np.array([len(user.batches) for user in users], dtype=np.int64)
    train, test = (
        np.array([int(split.lengths(np.full(len(rows), user), rows).sum()) for user, rows in part])
        for part in (
            [(user.user, user.train) for user in users],
            [(user.user, user.test) for user in users],
        )
    )
    epochs = np.array([(user.batches >= 0).sum() / len(user.train) for user in users])
    order = np.lexsort((-train, -steps))
    steps, trained, test = steps[order], 3 * (train * epochs)[order], 2 * test[order]
    least, cut = np.full(len(users) + 1, np.inf), np.zeros(len(users) + 1, dtype=np.int64)
    least[0] = 0
    for end in range(1, len(users) + 1):
        for begin in range(max(0, end - most), end):
            own = slice(begin, end)
            padded = (end - begin) * (trained[own].max() + test[own].max())
            cost = least[begin] + padded + 3 * call * (steps[begin] + 1)
            if cost < least[end]:
                least[end], cut[end] = cost, begin
    groups: list[list[int]] = []
    end = len(users)
    while end:
        groups.append(order[cut[end] : end].tolist())
        end = int(cut[end])
    return groups[::-1]


class _Chunk:
    """Some users, those of most steps first, who share each pass."""

    def __init__(
        self, model: nn.Module, split: StoreSplit, users: Sequence[LocalUser], batch_size: int
    ) -> None:
        self._model = model
        self._device = next(model.parameters()).device
        self._users = users
        self._batch_size = batch_size
        self._train = _rows(split, [(u.user, u.train) for u in users])
        self._test = _rows(split, [(u.user, u.test) for u in users])

    def adapt(self, parameters: dict[str, Tensor], learning_rate: float) -> dict[str, Tensor]:
        """Each user's own parameters: (users, …) by name."""
        users = len(self._users)
        stacked = {
            name: p.expand(users, *p.shape).clone(memory_format=torch.contiguous_format)
            for name, p in parameters.items()
        }
        first = self._train.offsets[:-1].tolist()
        gradients: Callable[..., Any] = vmap(grad(self._summed))
        for step in range(len(self._users[0].batches)):
            rows = [
                batch[batch >= 0] + start
                for batch, start in (
                    (user.batches[step], start)
                    for user, start in zip(self._users, first, strict=True)
                    if step < len(user.batches)
                )
            ]
            packed = pack(self._train, rows, mean_of_rows=True).to(self._device)
            own = {name: p[: len(rows)] for name, p in stacked.items()}
            for name, value in gradients(own, packed).items():
                own[name].sub_(value, alpha=learning_rate)
        return stacked

    @torch.no_grad()
    def measure(
        self, stacked: dict[str, Tensor] | None
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Each user's mean loss per target token, under the users' own parameters or the model's.

        Returns:
            float64 (users,), 0 where there is no target; int64 (users,) target tokens.
        """
        sums = torch.zeros(len(self._users), dtype=torch.float64)
        tokens = torch.zeros(len(self._users), dtype=torch.float64)
        of_user: Callable[..., Tensor] = vmap(self._summed, in_dims=(0, 0))
        for begin in range(0, max(len(user.test) for user in self._users), self._batch_size):
            bounds = zip(self._test.offsets[:-1].tolist(), self._users, strict=True)
            rows = [
                start + np.arange(begin, min(begin + self._batch_size, max(begin, len(user.test))))
                for start, user in bounds
            ]
            active = [number for number, own in enumerate(rows) if len(own)]
            packed = pack(self._test, [rows[k] for k in active], mean_of_rows=False)
            packed = packed.to(self._device)
            if stacked is None:
                found = _losses(self._model, packed.flat()).view(len(active), -1).sum(1)
            else:
                whole = len(active) == len(rows)
                own = {n: p if whole else p[active] for n, p in stacked.items()}
                found = of_user(own, packed)
            sums[active] += found.double().cpu()
            tokens[active] += packed.weights.flatten(1).sum(1).double().cpu()
        means: NDArray[np.float64] = (sums / tokens.clamp(min=1)).numpy()
        return means, tokens.long().numpy()

    def _summed(self, values: dict[str, Tensor], packed: Packed) -> Tensor:
        """One user's weighted loss, under parameters of its own."""
        return _losses(_With(self._model, values), packed).sum()


def _losses(model: nn.Module, packed: Packed) -> Tensor:
    """(rows, width): each token's weighted cross-entropy."""
    logits = model(
        input_ids=packed.input_ids,
        attention_mask=packed.attention_mask(),
        position_ids=packed.positions,
        use_cache=False,
    ).logits
    if logits.dtype != torch.float64:
        logits = logits.float()
    losses = F.cross_entropy(logits.flatten(0, 1), packed.labels.flatten(), reduction="none")
    return losses.view(packed.labels.shape) * packed.weights


class _With(nn.Module):
    """The model with other parameters: what is called inside ``vmap``."""

    def __init__(self, model: nn.Module, values: dict[str, Tensor]) -> None:
        super().__init__()
        self.__dict__["_model"], self.__dict__["_values"] = model, values

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return functional_call(self.__dict__["_model"], self.__dict__["_values"], args, kwargs)


def _rows(split: StoreSplit, parts: Sequence[tuple[int, NDArray[np.int64]]]) -> Units:
    """The named examples of each user, one unit per user."""
    sizes = np.array([len(examples) for _, examples in parts], dtype=np.int64)
    rows = split.gather(
        np.repeat([user for user, _ in parts], sizes),
        np.concatenate([examples for _, examples in parts]),
    )
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    return Units.from_flat(rows.tokens, rows.offsets, offsets, rows.targets)
