"""Losses of one's own."""

from dataclasses import dataclass
from functools import partial

import pandas as pd
import torch
import torch.nn.functional as F
from torch import nn

from tests.training.ordinary.own_modules import MinGPT
from tests.training.ordinary.script import BATCHES, Language, Script, bodies, row_means, script


def entropies(logits, input_ids, **options):
    """Each target's loss, of logits for every token."""
    targets = input_ids[:, 1:]
    return F.cross_entropy(logits[:, :-1].transpose(1, 2), targets, reduction="none", **options)


def label_smoothing(model, input_ids, lengths, smoothing=0.1):
    return row_means(entropies(model(input_ids), input_ids, label_smoothing=smoothing), lengths)


def a_flattened_loss(model, input_ids, lengths):
    logits, labels = model(input_ids)[:, :-1], input_ids[:, 1:].reshape(-1)
    losses = F.cross_entropy(logits.reshape(len(labels), -1), labels, reduction="none")
    return row_means(losses.view(len(input_ids), -1), lengths)


def labels_of_minus_100(model, input_ids, lengths):
    real = torch.arange(input_ids.shape[1]) < lengths[:, None]
    labels = input_ids.masked_fill(~real, -100)
    losses = entropies(model(input_ids), labels, ignore_index=-100)
    return losses.sum(1) / (labels[:, 1:] != -100).sum(1).clamp(min=1)


class AsAModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.each = nn.CrossEntropyLoss(reduction="none")

    def forward(self, model, input_ids, lengths):
        losses = self.each(model(input_ids)[:, :-1].transpose(1, 2), input_ids[:, 1:])
        return row_means(losses, lengths)


@dataclass
class OfADataclass:
    smoothing: float

    def __call__(self, model, input_ids, lengths):
        return label_smoothing(model, input_ids, lengths, self.smoothing)


def in_bfloat16_autocast(model, input_ids, lengths):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(input_ids)
    return row_means(entropies(logits.float(), input_ids), lengths)


def one_number_for_the_batch(model, input_ids, lengths):
    return F.cross_entropy(model(input_ids)[:, :-1].transpose(1, 2), input_ids[:, 1:])


def a_loss_of_fixed_rows(model, input_ids, lengths):
    return model(input_ids).mean((1, 2)) * torch.ones(3)


for a_loss, expected in (
    (label_smoothing, BATCHES),
    (a_flattened_loss, BATCHES),
    (labels_of_minus_100, BATCHES),
    (in_bfloat16_autocast, BATCHES),
    (one_number_for_the_batch, "per row|each row|row's loss|shape"),
    (a_loss_of_fixed_rows, "one number per row|size"),
):
    bodies(expected, a_loss, **{a_loss.__name__: MinGPT})
bodies(BATCHES, partial(label_smoothing, smoothing=0.2), a_partial=MinGPT)
bodies(BATCHES, AsAModule(), a_loss_that_is_a_module=MinGPT)
bodies(BATCHES, OfADataclass(0.2), a_loss_that_is_a_dataclass=MinGPT)


@script(BATCHES)
def a_teacher(vocabulary):
    teacher = Language(vocabulary, MinGPT()).eval()

    def loss(model, input_ids, lengths):
        with torch.no_grad():
            wanted = teacher(input_ids).log_softmax(-1)
        found = model(input_ids).log_softmax(-1)
        apart = F.kl_div(found, wanted, reduction="none", log_target=True).sum(-1)
        return row_means(apart[:, :-1], lengths)

    return Script(model=Language(vocabulary, MinGPT()), loss=loss)


@script(BATCHES)
def weights_from_a_pandas_frame(vocabulary):
    frame = pd.DataFrame({"weight": [1.0 + token % 3 for token in range(vocabulary)]})

    def loss(model, input_ids, lengths):
        weight = torch.tensor(frame["weight"].to_numpy(), dtype=torch.float32)
        return row_means(entropies(model(input_ids), input_ids) * weight[input_ids[:, 1:]], lengths)

    return Script(model=Language(vocabulary, MinGPT()), loss=loss)
