"""Losses of one's own."""

from __future__ import annotations

import copy
from functools import partial

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.training.ordinary.own_modules import MinGPT
from tests.training.ordinary.script import BATCHES, Language, Script, row_means, script


def of(vocabulary: int, loss: object) -> Script:
    return Script(model=Language(vocabulary, MinGPT()), loss=loss)  # type: ignore[arg-type]


def smoothed(
    model: nn.Module, input_ids: Tensor, lengths: Tensor, smoothing: float = 0.1
) -> Tensor:
    logits = model(input_ids)[:, :-1]
    losses = F.cross_entropy(
        logits.transpose(1, 2), input_ids[:, 1:], reduction="none", label_smoothing=smoothing
    )
    return row_means(losses, lengths)


@script(BATCHES)
def label_smoothing(vocabulary: int) -> Script:
    return of(vocabulary, smoothed)


@script(BATCHES)
def a_partial(vocabulary: int) -> Script:
    return of(vocabulary, partial(smoothed, smoothing=0.2))


@script(BATCHES)
def a_flattened_loss(vocabulary: int) -> Script:
    def loss(model: nn.Module, input_ids: Tensor, lengths: Tensor) -> Tensor:
        logits = model(input_ids)[:, :-1].reshape(-1, vocabulary)
        labels = input_ids[:, 1:].reshape(-1)
        losses = F.cross_entropy(logits, labels, reduction="none")
        return row_means(losses.view(len(input_ids), -1), lengths)

    return of(vocabulary, loss)


@script(BATCHES)
def labels_of_minus_100(vocabulary: int) -> Script:
    def loss(model: nn.Module, input_ids: Tensor, lengths: Tensor) -> Tensor:
        real = torch.arange(input_ids.shape[1]) < lengths[:, None]
        labels = input_ids.masked_fill(~real, -100)[:, 1:]
        logits = model(input_ids)[:, :-1].transpose(1, 2)
        losses = F.cross_entropy(logits, labels, reduction="none", ignore_index=-100)
        return losses.sum(1) / (labels != -100).sum(1).clamp(min=1)

    return of(vocabulary, loss)


@script(BATCHES)
def a_teacher(vocabulary: int) -> Script:
    teacher = Language(vocabulary, MinGPT()).eval()

    def loss(model: nn.Module, input_ids: Tensor, lengths: Tensor) -> Tensor:
        with torch.no_grad():
            wanted = teacher(input_ids).log_softmax(-1)
        found = model(input_ids).log_softmax(-1)
        apart = F.kl_div(found, wanted, reduction="none", log_target=True).sum(-1)
        return row_means(apart[:, :-1], lengths)

    return of(vocabulary, loss)


@script(BATCHES)
def a_penalty_on_logits(vocabulary: int) -> Script:
    def loss(model: nn.Module, input_ids: Tensor, lengths: Tensor) -> Tensor:
        logits = model(input_ids)[:, :-1]
        sums = logits.logsumexp(-1)
        picked = logits.gather(-1, input_ids[:, 1:, None]).squeeze(-1)
        return row_means(sums - picked + 1e-4 * sums**2, lengths)

    return of(vocabulary, loss)


@script(BATCHES)
def focal(vocabulary: int) -> Script:
    def loss(model: nn.Module, input_ids: Tensor, lengths: Tensor) -> Tensor:
        logs = model(input_ids)[:, :-1].log_softmax(-1)
        picked = torch.gather(logs, 2, input_ids[:, 1:].unsqueeze(2)).squeeze(2)
        return row_means(-((1 - picked.exp()) ** 2) * picked, lengths)

    return of(vocabulary, loss)


class AsAModule(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.each = nn.CrossEntropyLoss(reduction="none")

    def forward(self, model: nn.Module, input_ids: Tensor, lengths: Tensor) -> Tensor:
        losses = self.each(model(input_ids)[:, :-1].transpose(1, 2), input_ids[:, 1:])
        return row_means(losses, lengths)


@script(BATCHES)
def a_loss_that_is_a_module(vocabulary: int) -> Script:
    return of(vocabulary, AsAModule())


@script(BATCHES)
def weights_from_a_pandas_frame(vocabulary: int) -> Script:
    frame = pd.DataFrame({"weight": [1.0 + token % 3 for token in range(vocabulary)]})

    def loss(model: nn.Module, input_ids: Tensor, lengths: Tensor) -> Tensor:
        weight = torch.tensor(frame["weight"].to_numpy(), dtype=torch.float32)
        losses = F.cross_entropy(
            model(input_ids)[:, :-1].transpose(1, 2), input_ids[:, 1:], reduction="none"
        )
        return row_means(losses * weight[input_ids[:, 1:]], lengths)

    return of(vocabulary, loss)


@script(BATCHES)
def a_base_to_stay_near(vocabulary: int) -> Script:
    model = Language(vocabulary, MinGPT(0.0))
    base = copy.deepcopy(model).requires_grad_(False)

    def loss(model: nn.Module, input_ids: Tensor, lengths: Tensor) -> Tensor:
        found, before = model(input_ids), base(input_ids)
        losses = F.cross_entropy(found[:, :-1].transpose(1, 2), input_ids[:, 1:], reduction="none")
        near = (found.softmax(-1) - before.softmax(-1)).square().sum(-1)[:, :-1]
        return row_means(losses + 0.1 * near, lengths)

    return Script(model=model, loss=loss)


@script(BATCHES)
def in_bfloat16_autocast(vocabulary: int) -> Script:
    def loss(model: nn.Module, input_ids: Tensor, lengths: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(input_ids)[:, :-1]
        losses = F.cross_entropy(logits.float().transpose(1, 2), input_ids[:, 1:], reduction="none")
        return row_means(losses, lengths)

    return of(vocabulary, loss)


@script("per row|each row|row's loss|shape")
def one_number_for_the_batch(vocabulary: int) -> Script:
    def loss(model: nn.Module, input_ids: Tensor, lengths: Tensor) -> Tensor:
        logits = model(input_ids)[:, :-1]
        return F.cross_entropy(logits.transpose(1, 2), input_ids[:, 1:])

    return of(vocabulary, loss)


@script("one number per row|size")
def a_loss_of_fixed_rows(vocabulary: int) -> Script:
    def loss(model: nn.Module, input_ids: Tensor, lengths: Tensor) -> Tensor:
        logits: Tensor = model(input_ids)
        return logits.mean((1, 2)) * torch.ones(3)

    return of(vocabulary, loss)


@script("own count of targets|depend on the data of the others")
def tokens_of_the_whole_batch(vocabulary: int) -> Script:
    def loss(model: nn.Module, input_ids: Tensor, lengths: Tensor) -> Tensor:
        losses = F.cross_entropy(
            model(input_ids)[:, :-1].transpose(1, 2), input_ids[:, 1:], reduction="none"
        )
        real = torch.arange(losses.shape[1]) < lengths[:, None] - 1
        return (losses * real).sum(1) / real.sum()

    return of(vocabulary, loss)
