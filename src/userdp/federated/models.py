"""The models of a federation, built alike in every silo, and their losses per item."""

from __future__ import annotations

from functools import lru_cache, singledispatch

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from userdp.errors import UseError
from userdp.federated.plan import LanguageModel, LeafCNN, ModelSpec
from userdp.gradients import Loss, Units, causal_lm_loss, trainable_parameters
from userdp.training.config import TrainConfig
from userdp.training.lora import add_adapters
from userdp.training.models import NEW, new_model, read_model, resolve

Weights = dict[str, NDArray[np.float32]]


BRIGHTEST = 255
"""The largest value of a pixel; the least is 0."""


class ImageNetwork(nn.Module):
    """LEAF's network for images: two convolutions with pooling, two dense layers.

    LEAF's own size for FEMNIST is ``width`` 32 on 28 x 28 pixels with 62 classes: 32 and 64
    channels, 2,048 hidden units.
    """

    def __init__(self, *, side: int, classes: int, width: int) -> None:
        super().__init__()
        self.side = side
        self.classes = classes
        self.first = nn.Conv2d(1, width, 5, padding=2)
        self.second = nn.Conv2d(width, 2 * width, 5, padding=2)
        left = (side // 4) ** 2 * 2 * width
        self.hidden = nn.Linear(left, 64 * width)
        self.out = nn.Linear(64 * width, classes)

    def forward(self, rows: Tensor) -> Tensor:
        """Items of any width, (rows, 1 + pixels) → (rows, classes).

        Pixels are centred and scaled by public constants. An item of too few pixels is filled up
        and one of too many is cut: no item's content raises anything, which others would see.
        """
        pixels = rows[:, 1:].clamp(max=BRIGHTEST).float() / BRIGHTEST
        pixels = F.pad(pixels, (0, self.side**2 - pixels.shape[1]))
        x = ((pixels - 0.3) * 2.5).view(-1, 1, self.side, self.side)
        x = F.max_pool2d(F.relu(self.first(x)), 2)
        x = F.max_pool2d(F.relu(self.second(x)), 2)
        logits: Tensor = self.out(F.relu(self.hidden(x.flatten(1))))
        return logits


def image_loss(model: nn.Module, rows: Tensor, lengths: Tensor) -> Tensor:
    """Cross-entropy of each image's class, zero for a class that the model does not have.

    Such an item adds nothing, as if it were absent: refusing it would tell others what it holds.
    """
    places = torch.arange(rows.shape[1], device=rows.device)
    logits = model(torch.where(places < lengths[:, None], rows, 0))
    known = rows[:, 0] < logits.shape[1]
    losses = F.cross_entropy(logits, torch.where(known, rows[:, 0], 0), reduction="none")
    return torch.where(known, losses, 0.0)


@singledispatch
def build_model(spec: ModelSpec) -> tuple[nn.Module, Loss]:
    """The model and its loss; equal specs give equal public initial weights.

    A new kind of `ModelSpec` registers here what it builds.

    Raises:
        UseError: a language model cannot be loaded.
    """
    raise NotImplementedError(spec.kind)


@build_model.register
def _(spec: LeafCNN) -> tuple[nn.Module, Loss]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(spec.seed)
        return ImageNetwork(side=spec.side, classes=spec.classes, width=spec.width), image_loss


@build_model.register
def _(spec: LanguageModel) -> tuple[nn.Module, Loss]:
    config = TrainConfig(
        model=spec.model,
        layers=spec.layers,
        width=spec.width,
        heads=spec.heads,
        lora_rank=spec.lora_rank,
        seed=spec.seed,
    )
    if spec.model == NEW:
        model = new_model(config, vocab_size=spec.vocab_size, seq_len=spec.seq_len)
    else:
        model = read_model(resolve(spec.model))
    return add_adapters(model, config).train(), causal_lm_loss


@lru_cache(maxsize=1)
def shared_model(spec: ModelSpec) -> tuple[nn.Module, Loss]:
    """`build_model`, and the same model again for the same spec.

    A process that answers many messages then asks only once whether the model keeps rows apart. A
    function of its own, since Flower's engine sends the app that calls it to other processes.
    """
    return build_model(spec)


def weights_of(model: nn.Module) -> Weights:
    """The trainable parameters as float32 arrays, by name: all that a federation exchanges."""
    return {
        name: parameter.detach().to("cpu", torch.float32).numpy().copy()
        for name, parameter in trainable_parameters(model).items()
    }


def put_weights(model: nn.Module, weights: Weights) -> None:
    """Set the trainable parameters.

    Raises:
        UseError: names, shapes or dtypes are another model's, or a number is not finite.
    """
    parameters = trainable_parameters(model)
    require_same_model({name: tuple(p.shape) for name, p in parameters.items()}, weights)
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(torch.from_numpy(np.ascontiguousarray(weights[name])))


def require_same_model(shapes: dict[str, tuple[int, ...]], weights: Weights) -> None:
    """`UseError` unless ``weights`` has these names and shapes, in float32, all finite."""
    theirs = {name: tuple(array.shape) for name, array in weights.items()}
    if theirs != shapes:
        off = sorted(
            name for name in shapes.keys() | theirs.keys() if shapes.get(name) != theirs.get(name)
        )
        raise UseError(
            f"the weights are another model's: they differ in {', '.join(off[:5])}",
            hint="every silo and the server need the same federation plan and the same base model",
        )
    for name, array in weights.items():
        if array.dtype != np.float32 or not bool(np.isfinite(array).all()):
            raise UseError(f"the weights {name} are not finite float32 numbers")


def accuracy(model: nn.Module, units: Units) -> float:
    """The fraction of images whose class the network finds; 0 for none. Operator-only."""
    right, device = 0, next(model.parameters()).device
    with torch.no_grad():
        for begin in range(0, len(units), 512):
            rows = units.input_ids[begin : begin + 512].to(device)
            right += int((model(rows).argmax(-1) == rows[:, 0]).sum())
    return right / max(1, len(units))
