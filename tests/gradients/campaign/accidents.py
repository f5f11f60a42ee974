"""Ordinary scripts whose later passes are not those that were certified, or that keep a state.

Each has the ways in which it may be computed. Which one it is hangs on code; whichever it is, one
unit moves the sum by at most C.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from tests.gradients.campaign import families
from tests.gradients.campaign.measure import Influence, biting_clip, influence
from userdp.gradients import ClippedSum, Loss, Units, causal_lm_loss, get_engine


@dataclass(frozen=True, kw_only=True, slots=True)
class Accident:
    """A model, a loss, and what may become of them.

    Attributes:
        loss: makes the loss anew.
        model: makes the model anew; GPT-2 where it is not told.
        allowed: of "certified", "reference", "refused" and "raised" (an error of torch).
        says: words of the refusal by every engine, whoever was drawn.
    """

    loss: Callable[[], Loss] = lambda: causal_lm_loss
    model: Callable[[], nn.Module] = lambda: families.build("gpt2")
    allowed: tuple[str, ...]
    says: str = ""


def measured(accident: Accident) -> Influence:
    """The influence of each of a few users; each sum begins with the same attributes of the loss.

    A loss that changes ``after`` some passes does so within each of the sums that are compared, and
    not yet where the engine first meets it.

    Raises:
        UseError: the engine refuses model or loss.
    """
    model, loss = accident.model(), accident.loss()
    units, engine, begun = Units.from_rows(_rows()), get_engine("auto"), dict(vars(loss))

    def summed(some: Units, clip: float, **friendly: int) -> ClippedSum:
        vars(loss).update(begun | friendly)
        return engine(model, loss, some, l2_clip_norm=clip, micro_batch=MICRO_BATCH)

    friendly = {"after": 1 << 30} if begun.get("after") else {}
    found = [
        influence(
            partial(summed, clip=clip),
            units,
            clip=clip,
            out=range(0, len(units), 4),
            vocabulary=families.VOCABULARY,
        )
        for clip in (biting_clip(summed(units, 1.0, **friendly).norms, share) for share in SHARES)
    ]
    return max(found, key=lambda one: one.ratio)


SHARES, MICRO_BATCH = (0.5, 3.0), 4
"""Clip norms over the users' median norm: one that all exceed, and one that few do."""


def _rows() -> list[list[list[int]]]:
    draw = random.Random(1)
    return [[[first, *(draw.randrange(30, 57) for _ in range(7))]] for first in range(1, 14)]


# Losses.


def each_token(model: nn.Module, input_ids: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """The loss of each token, 0 for padding; and how many count in each row."""
    if input_ids.shape[1] < 2:
        input_ids = F.pad(input_ids, (0, 2 - input_ids.shape[1]))
    positions = torch.arange(input_ids.shape[1] - 1).expand(len(input_ids), -1)
    held = torch.where(positions < lengths[:, None], input_ids[:, :-1], 0)
    logits = model(input_ids=held, position_ids=positions, use_cache=False).logits
    flat = F.cross_entropy(logits.flatten(0, 1), input_ids[:, 1:].flatten(), reduction="none")
    real = positions < lengths[:, None] - 1
    return flat.view(real.shape) * real, real.sum(1).clamp(min=1)


class ChangesLater:
    """A loss that is another one after some passes."""

    def __init__(self, after: int) -> None:
        self.calls, self.after = 0, after

    def has_changed(self) -> bool:
        """Whether this pass, which is counted, comes after them."""
        self.calls += 1
        return self.calls > self.after


class Mining(ChangesLater):
    """Counts only hard examples, later; ``over_batch``: those that are harder than the others."""

    def __init__(self, after: int, *, over_batch: bool = False) -> None:
        super().__init__(after)
        self.over_batch = over_batch

    def __call__(self, model: nn.Module, input_ids: Tensor, lengths: Tensor) -> Tensor:
        sums, counts = each_token(model, input_ids, lengths)
        losses = sums.sum(1) / counts
        if self.has_changed():
            hard = losses.detach().max() if self.over_batch else 4.0
            losses = losses * (0.2 + 20 * (losses.detach() >= hard))
        return losses


class Schedule(ChangesLater):
    """Label smoothing that begins later, and grows."""

    def __call__(self, model: nn.Module, input_ids: Tensor, lengths: Tensor) -> Tensor:
        losses = causal_lm_loss(model, input_ids, lengths)
        if self.has_changed():
            losses = losses + 0.01 * min(self.calls - self.after, 10) * losses.square()
        return losses


class Weighted(ChangesLater):
    """Weighs tokens by a softmax along the row; later, by mistake, along the batch."""

    def __call__(self, model: nn.Module, input_ids: Tensor, lengths: Tensor) -> Tensor:
        each, _ = each_token(model, input_ids, lengths)
        return (each * (8 * each).softmax(0 if self.has_changed() else 1)).sum(1)


class RunningLoss:
    """Divides by a running mean of earlier losses, which is an attribute of the loss."""

    mean: Any = 1.0

    def __call__(self, model: nn.Module, input_ids: Tensor, lengths: Tensor) -> Tensor:
        losses = causal_lm_loss(model, input_ids, lengths)
        before, self.mean = self.mean, 0.5 * self.mean + 0.5 * losses.detach().mean()
        return losses / before


def seeded(model: nn.Module, input_ids: Tensor, lengths: Tensor) -> Tensor:
    torch.manual_seed(0)
    return causal_lm_loss(model, input_ids, lengths)


@functools.lru_cache
def weights_of(width: int) -> Tensor:
    return 0.9 ** torch.arange(width)


def cached(model: nn.Module, input_ids: Tensor, lengths: Tensor) -> Tensor:
    losses, counts = each_token(model, input_ids, lengths)
    return (losses * weights_of(losses.shape[1])).sum(1) / counts


@functools.lru_cache
def out_of_sight() -> list[Tensor]:
    return [torch.zeros(())]


def follows_the_last_pass(model: nn.Module, input_ids: Tensor, lengths: Tensor) -> Tensor:
    """What a cache holds is a constant only while it is the same tensor in each pass."""
    losses = causal_lm_loss(model, input_ids, lengths)
    before, out_of_sight()[0] = out_of_sight()[0], losses.detach().mean()
    return losses * (1 + before)


@torch.jit.script
def words(ids: Tensor) -> int:
    return int((ids > 5).sum())


def per_word(model: nn.Module, input_ids: Tensor, lengths: Tensor) -> Tensor:
    """Divides by the words of all rows."""
    return causal_lm_loss(model, input_ids, lengths) * (len(input_ids) / (1 + words(input_ids)))


@torch.jit.script
def own_words(ids: Tensor) -> Tensor:
    return (ids > 5).sum(1) + 1


def per_own_word(model: nn.Module, input_ids: Tensor, lengths: Tensor) -> Tensor:
    """Divides by each row's own words."""
    held = torch.where(torch.arange(input_ids.shape[1]) < lengths[:, None], input_ids, 0)
    return causal_lm_loss(model, input_ids, lengths) / own_words(held)


def over_processes(model: nn.Module, input_ids: Tensor, lengths: Tensor) -> Tensor:
    """Weighs rows by the mean loss of all processes' rows in their places.

    One process alone shows nothing of it.
    """
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    losses = causal_lm_loss(model, input_ids, lengths)
    mean = losses.detach().clone()
    dist.all_reduce(mean)
    return losses * mean / dist.get_world_size()


# Modules.


class Around(nn.Module):
    """A layer of GPT-2 with something around it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, hidden: Tensor, *args: Any, **options: Any) -> Any:
        return self.inner(hidden, *args, **options)


class RunningMean(Around):
    """Takes off a running mean of earlier passes, which ``holder`` of this layer has."""

    def __init__(
        self,
        inner: nn.Module,
        holder: Callable[[Any], Any] = lambda layer: layer,
        *,
        in_buffer: bool = False,
    ) -> None:
        super().__init__(inner)
        self.holder = holder
        if in_buffer:
            self.register_buffer("mean", None)
        else:
            holder(self).mean = None

    def forward(self, hidden: Tensor, *args: Any, **options: Any) -> Any:
        holder, now = self.holder(self), hidden.detach().mean((0, 1))
        before = holder.mean
        holder.mean = now if before is None else 0.5 * before + 0.5 * now
        return super().forward(hidden if before is None else hidden - 9 * before, *args, **options)


class MeanOfAllLayers(RunningMean):
    """Of a class that the mean is an attribute of."""


LAST = SimpleNamespace(mean=None)


class Skips(Around):
    """Stochastic depth by Python's own generator."""

    def forward(self, hidden: Tensor, *args: Any, **options: Any) -> Any:
        if self.training and random.random() < 0.3:
            return hidden
        return super().forward(hidden, *args, **options)


def wrapped(block: Callable[[nn.Module], nn.Module]) -> nn.Module:
    """GPT-2 with something around its first layer."""
    model: Any = families.build("gpt2")
    model.transformer.h[0] = block(model.transformer.h[0])
    return model.train()


def watched() -> nn.Module:
    """As by wandb.watch, which asks every parameter for its gradient."""
    model = families.build("gpt2")
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: None)
    return model


class Linear8bitLt(nn.Linear):
    """By name and module as in LLM.int8, which needs a GPU."""


Linear8bitLt.__module__ = "bitsandbytes.nn.modules"


def eight_bits() -> nn.Module:
    model: Any = families.build("gpt2")
    model.lm_head = Linear8bitLt(16, families.VOCABULARY, bias=False)
    return model


def dynamic_rope() -> nn.Module:
    """Rotary tables that the library computes anew for longer passes."""
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    return families.build("llama", max_position_embeddings=8, rope_parameters=rope)


def checkpointed(*, reentrant: bool) -> nn.Module:
    model: Any = families.build("gpt2")
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    return model.train()


def renormalised() -> nn.Module:
    model: Any = families.build("gpt2")
    model.transformer.wte.max_norm = 1.0
    return model


def layerdrop() -> nn.Module:
    model: Any = families.build("opt")
    model.model.decoder.layerdrop = 0.4
    return model


TOGETHER, ALONE, REFUSED = ("certified",), ("reference",), ("refused",)
ANY = (*TOGETHER, *ALONE)
LATER = (*ANY, *REFUSED)

ACCIDENTS: dict[str, Accident] = {
    "hard examples": Accident(loss=lambda: Mining(0), allowed=ALONE),
    "hard examples after some passes": Accident(loss=lambda: Mining(2), allowed=LATER),
    "the batch's hardest example": Accident(
        loss=lambda: Mining(0, over_batch=True), allowed=REFUSED, says="on made-up rows"
    ),
    "the batch's hardest example after some passes": Accident(
        loss=lambda: Mining(2, over_batch=True), allowed=LATER
    ),
    "a schedule after some passes": Accident(loss=lambda: Schedule(2), allowed=LATER),
    "a dimension that changes after some passes": Accident(loss=lambda: Weighted(2), allowed=LATER),
    "stochastic depth by Python's random": Accident(model=lambda: wrapped(Skips), allowed=ALONE),
    "layers that are dropped": Accident(model=layerdrop, allowed=ALONE),
    "dropout": Accident(model=lambda: families.build("gpt2", dropout=0.3), allowed=TOGETHER),
    "a seed in the loss, beside dropout": Accident(
        model=lambda: families.build("gpt2", dropout=0.3),
        loss=lambda: seeded,
        allowed=REFUSED,
        says="seeds a random number generator",
    ),
    "a mask cached by lru_cache": Accident(loss=lambda: cached, allowed=TOGETHER),
    "a number of the last pass in a cache": Accident(
        loss=lambda: follows_the_last_pass, allowed=REFUSED, says="keeps a state"
    ),
    "a script that counts all rows' words": Accident(
        loss=lambda: per_word, allowed=REFUSED, says="on made-up rows"
    ),
    "a script that counts each row's words": Accident(loss=lambda: per_own_word, allowed=ALONE),
    "hooks as of wandb.watch": Accident(model=watched, allowed=REFUSED, says="wandb.watch"),
    "a loss over processes": Accident(
        loss=lambda: over_processes, allowed=REFUSED, says="asks other processes"
    ),
    "LLM.int8": Accident(model=eight_bits, allowed=REFUSED, says="Linear8bitLt"),
    "a running mean of the loss": Accident(loss=RunningLoss, allowed=ALONE),
    "a running mean in an attribute": Accident(model=lambda: wrapped(RunningMean), allowed=ALONE),
    "a running mean in a buffer": Accident(
        model=lambda: wrapped(partial(RunningMean, in_buffer=True)), allowed=ALONE
    ),
    "a running mean in a class": Accident(
        model=lambda: wrapped(partial(MeanOfAllLayers, holder=type)), allowed=ALONE
    ),
    "a running mean in a global": Accident(
        model=lambda: wrapped(partial(RunningMean, holder=lambda layer: LAST)), allowed=ALONE
    ),
    "dynamic rotary embeddings": Accident(model=dynamic_rope, allowed=TOGETHER),
    "an embedding with max_norm": Accident(model=renormalised, allowed=REFUSED, says="max_norm"),
    "checkpointing": Accident(model=lambda: checkpointed(reentrant=False), allowed=ANY),
    "reentrant checkpointing": Accident(
        model=lambda: checkpointed(reentrant=True), allowed=(*LATER, "raised")
    ),
}
