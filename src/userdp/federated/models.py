"""The models of the paper's experiments, built alike in every silo, and their losses per item."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from userdp.errors import UseError
from userdp.federated.plan import ModelKind, ModelSpec
from userdp.gradients import Loss, causal_lm_loss, trainable_parameters

Weights = dict[str, NDArray[np.float32]]


class Patches(nn.Module):
    """A convolution of odd width with padding, as a linear layer over patches.

    The same function as `nn.Conv2d`; written so that every engine knows each item's gradient.
    """

    def __init__(self, channels: int, out: int, width: int) -> None:
        super().__init__()
        self.width = width
        self.linear = nn.Linear(channels * width * width, out)

    def forward(self, x: Tensor) -> Tensor:
        """(rows, channels, side, side) → (rows, out, side, side)."""
        side = x.shape[-1]
        patches = F.unfold(x, self.width, padding=self.width // 2)
        found: Tensor = self.linear(patches.transpose(1, 2))
        return found.transpose(1, 2).reshape(x.shape[0], -1, side, side)


class LeafCNN(nn.Module):
    """LEAF's network for images: two convolutions with pooling, two dense layers.

    LEAF's own size for FEMNIST is ``width`` 32 on 28 x 28 pixels with 62 classes: 32 and 64
    channels, 2,048 hidden units.
    """

    def __init__(self, *, side: int, classes: int, width: int) -> None:
        super().__init__()
        self.side = side
        self.first = Patches(1, width, 5)
        self.second = Patches(width, 2 * width, 5)
        left = (side // 4) ** 2 * 2 * width
        self.hidden = nn.Linear(left, 64 * width)
        self.out = nn.Linear(64 * width, classes)

    def forward(self, pixels: Tensor) -> Tensor:
        """(rows, side²) → (rows, classes)."""
        x = pixels.view(-1, 1, self.side, self.side)
        x = F.max_pool2d(F.relu(self.first(x)), 2)
        x = F.max_pool2d(F.relu(self.second(x)), 2)
        logits: Tensor = self.out(F.relu(self.hidden(x.flatten(1))))
        return logits


class StackedLSTM(nn.Module):
    """Two LSTM layers over characters and two linear layers at the end.

    The cells are written with `nn.Linear`, so that every engine knows each item's gradient.
    """

    def __init__(self, *, vocabulary: int, width: int, layers: int = 2) -> None:
        super().__init__()
        self.width = width
        self.embed = nn.Embedding(vocabulary, 8)
        sizes = [8] + [width] * (layers - 1)
        self.inputs = nn.ModuleList(nn.Linear(size, 4 * width) for size in sizes)
        self.states = nn.ModuleList(nn.Linear(width, 4 * width, bias=False) for _ in sizes)
        self.dense = nn.Linear(width, width)
        self.out = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        """(rows, length) → (rows, length, vocabulary)."""
        x = self.embed(tokens)
        for taken_in, carried in zip(self.inputs, self.states, strict=True):
            gates_in = taken_in(x)
            h = x.new_zeros(x.shape[0], self.width)
            c = x.new_zeros(x.shape[0], self.width)
            outputs = []
            for t in range(x.shape[1]):
                i, f, g, o = (gates_in[:, t] + carried(h)).chunk(4, dim=-1)
                c = torch.sigmoid(f + 1.0) * c + torch.sigmoid(i) * torch.tanh(g)
                h = torch.sigmoid(o) * torch.tanh(c)
                outputs.append(h)
            x = torch.stack(outputs, dim=1)
        logits: Tensor = self.out(F.relu(self.dense(x)))
        return logits


def pixels_of(rows: Tensor) -> Tensor:
    """The pixels of image rows, centred and scaled by public constants."""
    return (rows[:, :-1].float() / 255.0 - 0.3) * 2.5


def image_loss(model: nn.Module, rows: Tensor, lengths: Tensor) -> Tensor:
    """Cross-entropy of each image's class; a row is its pixels (0 … 255) and its class."""
    logits = model(pixels_of(rows))
    return F.cross_entropy(logits, rows[:, -1], reduction="none")


def text_loss(model: nn.Module, rows: Tensor, lengths: Tensor) -> Tensor:
    """Mean cross-entropy of each row's next characters."""
    logits = model(rows[:, :-1])
    targets = rows[:, 1:]
    places = torch.arange(targets.shape[1], device=rows.device)
    counted = places[None, :] < (lengths - 1)[:, None]
    each = F.cross_entropy(
        logits.reshape(-1, logits.shape[-1]), targets.reshape(-1), reduction="none"
    ).view(targets.shape)
    return torch.where(counted, each, 0.0).sum(1) / counted.sum(1).clamp(min=1)


def build_model(spec: ModelSpec) -> tuple[nn.Module, Loss]:
    """The model and its loss; equal specs give equal public initial weights.

    Raises:
        UseError: a causal language model cannot be loaded.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(spec.seed)
        if spec.kind is ModelKind.CNN:
            return LeafCNN(side=spec.inputs, classes=spec.outputs, width=spec.width), image_loss
        if spec.kind is ModelKind.LSTM:
            return StackedLSTM(vocabulary=spec.outputs, width=spec.width), text_loss
        return _language_model(spec), causal_lm_loss


def _language_model(spec: ModelSpec) -> nn.Module:
    """A causal language model of which only LoRA adapters train."""
    from userdp.training.config import TrainConfig
    from userdp.training.lora import add_adapters
    from userdp.training.models import read_model, resolve

    assert spec.base is not None
    config = TrainConfig(lora_rank=spec.width, seed=spec.seed)
    return add_adapters(read_model(resolve(spec.base)), config)


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


def accuracy(
    model: nn.Module, spec: ModelSpec, rows: Tensor, lengths: Tensor
) -> tuple[float, float]:
    """(accuracy, mean loss) over items; of next characters for text. Operator-only."""
    right = total = 0
    loss_sum = 0.0
    _, loss = build_loss(spec)
    with torch.no_grad():
        for begin in range(0, len(rows), 512):
            part, sizes = rows[begin : begin + 512], lengths[begin : begin + 512]
            loss_sum += float(loss(model, part, sizes).sum())
            if spec.kind is ModelKind.CNN:
                found = model(pixels_of(part)).argmax(-1)
                right += int((found == part[:, -1]).sum())
                total += len(part)
            elif spec.kind is ModelKind.LSTM:
                found = model(part[:, :-1]).argmax(-1)
                counted = torch.arange(found.shape[1])[None, :] < (sizes - 1)[:, None]
                right += int(((found == part[:, 1:]) & counted).sum())
                total += int(counted.sum())
    return right / max(1, total), loss_sum / max(1, len(rows))


def build_loss(spec: ModelSpec) -> tuple[ModelKind, Loss]:
    """The loss per item that belongs to a kind of model."""
    losses: dict[ModelKind, Loss] = {
        ModelKind.CNN: image_loss,
        ModelKind.LSTM: text_loss,
        ModelKind.CAUSAL_LM: causal_lm_loss,
    }
    return spec.kind, losses[spec.kind]
