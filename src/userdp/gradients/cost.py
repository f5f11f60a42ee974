r"""Predict time and memory of a step, plain and private, without the machine that is meant.

A closed model: nothing of a step is run. A model of one layer and one of two, with random weights,
see one row each on this CPU; the difference of the two is what a further layer needs (`look`). Of
them are taken the shapes of the matrices and the bytes that autograd keeps for the backward pass
(A). With N positions, U units and R rows in a pass:

* *Products* take 2 N p q operations for a matrix (p, q) forward, as many for the gradient of its
  input and as many for its own, where it trains; attention 14 T^2 d for a row and a layer.
* *Bytes* are those that products read and write, and a fixed number for each byte of A, of the
  logits and of the gradient: `_PER_KEPT` and its neighbours, which were counted once on GPT-2.
* *Privacy* forms U gradients of a matrix and reads them twice more, or multiplies Gram matrices of
  S positions a unit, 2 U S^2 (p + q) operations, whichever `choose_form` takes.
* *Memory* is the larger one of two moments: the backward pass begins (all of A, the logits and
  their gradient), or it ends (all that was formed of the units of the pass).

What the host needs to hand over operations is left out: an accelerator works meanwhile, and waits
for it where a model is small. To the gradients come the exchange of the sum between devices, the
noise and AdamW's update. How far the predictions were from measurements stands in docs/cost.md.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, nn

from userdp.core.errors import UseError
from userdp.core.vocabulary import require_positive
from userdp.gradients.engines.passes import FORMED_BYTES, MOST_PLACES, rows_per_pass
from userdp.gradients.engines.uses import Form, choose_form

METHODS = ("plain", "batched")
"""Training without privacy, and with it where users share passes."""

_PER_KEPT, _PER_LOGIT, _PER_GRADIENT, _PER_ADAPTED = 8.0, 4.0, 4.0, 8.0
"""Bytes that a pass moves outside products for each byte of A, of the logits, of the gradient, and
of what adapted layers give (not where users share passes: layer and adapter run as one there)."""

_PER_FORMED, _PER_SUMMED = 5.0, 10.0
"""The same for each byte of gradients formed of several units, and for each byte of the gradient
where users share passes."""

_PER_GRAM = 10.0
"""How often the numbers of a unit's Gram matrix are read or written."""

_NOISE_BYTES = 192.0
"""Bytes that drawing the noise of a parameter moves."""

_ADAM_BYTES, _ADAM_STATE, _MEAN_BYTES = 28.0, 8.0, 16.0
"""Bytes that AdamW moves for a float32 parameter, that it keeps for one, and that turning the sum
into a mean moves."""

_NARROW = 838
"""Up to which S sums are kept in float32 (`userdp.gradients.engines.rounding`)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Hardware:
    """What one device does in a second, and how many devices there are.

    Figures of accelerators are dense peaks of their makers' data sheets, float32 without TF32.

    Attributes:
        name: in `TABLE`.
        kind: "cpu" or "cuda": for which engines choose forms and fill passes.
        flops: operations of products.
        attention: operations of fused attention.
        bytes: read and written.
        exponentials: numbers through exp, where that is what a CPU waits for.
        noise: numbers of noise, where they are not drawn on the device.
        memory: bytes; infinite where it is the machine's.
        link: bytes that a device sends to others.
        source: of the figures.
        reached: the share of the figures that is assumed to be reached.
        count: devices.
    """

    name: str
    kind: str = "cuda"
    flops: float
    attention: float
    bytes: float
    exponentials: float = math.inf
    noise: float = math.inf
    memory: float
    link: float
    source: str
    reached: float = 0.5
    count: int = 1


def _sheet(name: str, *, source: str, gib: int, tb_s: float, tflops: float, link: int) -> Hardware:
    return Hardware(
        name=name, flops=tflops * 1e12, attention=tflops * 1e12, bytes=tb_s * 1e12,
        memory=gib * 2.0**30, link=link * 1e9, source=f"NVIDIA {source} data sheet",
    )  # fmt: skip


TABLE: Mapping[str, Hardware] = {
    one.name: one
    for one in (
        _sheet("a100", source="A100 (SXM, 80 GB)", gib=80, tb_s=2.039, tflops=19.5, link=300),
        _sheet("h100", source="H100 SXM", gib=80, tb_s=3.35, tflops=67, link=450),
        _sheet("h200", source="H200", gib=141, tb_s=4.8, tflops=67, link=450),
        _sheet("l4", source="L4", gib=24, tb_s=0.3, tflops=30.3, link=32),
        _sheet("l40s", source="L40S", gib=48, tb_s=0.864, tflops=91.6, link=32),
        Hardware(
            name="cpu", kind="cpu", flops=180.6e9, attention=62.1e9, bytes=15.2e9,
            exponentials=1.013e9, noise=25e6, memory=math.inf, link=math.inf, reached=1.0,
            source="fitted: one thread of an Intel Xeon (AVX-512, AMX), torch 2.13, 2026-11-27",
        ),
    )
}  # fmt: skip


def hardware_of(words: str) -> Hardware:
    """The hardware of a name such as ``h100`` or ``h100x8``.

    Raises:
        UseError: there is no such device in the table.

    >>> hardware_of("h100x8").count
    8
    """
    match = re.fullmatch(r"([a-z0-9]+?)(?:x([1-9][0-9]{0,4}))?", words.lower())
    if match is None or match[1] not in TABLE or (match[1] == "cpu" and match[2]):
        raise UseError(
            f"no figures are known of the hardware {words!r}, so nothing can be predicted for it",
            hint=f"take one of {', '.join(TABLE)}, and how many: h100x8 (cpu is one thread)",
        )
    return replace(TABLE[match[1]], count=int(match[2] or 1))


@dataclass(frozen=True, kw_only=True, slots=True)
class Looks:
    """What is taken of a model and one row.

    Attributes:
        matrices: how many there are of each (p, q, whether it trains); tables of tokens are none.
        numbers: of the whole model.
        trained: of them.
        kept: bytes that autograd keeps for the backward pass of a row (A).
        adapted: numbers that adapted layers give for a position.
        attended: width of all layers' attention together.
        vocabulary: logits of a position.
    """

    matrices: Counter[tuple[int, int, bool]]
    numbers: int
    trained: int
    kept: int
    adapted: int
    attended: int
    vocabulary: int

    def further(self, deeper: Looks, layers: int) -> Looks:
        """With so many more layers, of which ``deeper`` has one."""

        low, high = asdict(self), asdict(deeper)
        layer = deeper.matrices - self.matrices
        low.pop("matrices")
        return Looks(
            matrices=self.matrices + Counter({m: layers * n for m, n in layer.items()}),
            **{name: value + layers * (high[name] - value) for name, value in low.items()},
        )


def look(model: nn.Module, layers: int, length: int) -> Looks:
    """Look at a causal language model of ``layers`` layers, and at one row of ``length`` tokens."""
    matrices: Counter[tuple[int, int, bool]] = Counter()
    adapted = 0
    for name, module in model.named_modules():
        weight = getattr(module, "weight", None)
        table = isinstance(module, nn.Embedding) or hasattr(module, "base_layer")
        if not table and isinstance(weight, Tensor) and weight.dim() == 2:
            p, q = weight.shape
            matrices[p, q, weight.requires_grad] += 1
            adapted += p * (".lora_B." in name)
    own = {p.untyped_storage().data_ptr() for p in [*model.parameters(), *model.buffers()]}
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage
        return tensor

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda one: one):
        ids = torch.zeros(1, max(1, length - 1), dtype=torch.long)
        logits = model(input_ids=ids, use_cache=False).logits
    trained = [p.numel() for p in model.parameters() if p.requires_grad]
    return Looks(
        matrices=matrices,
        numbers=sum(p.numel() for p in model.parameters()),
        trained=sum(trained),
        kept=sum(one.nbytes() for at, one in kept.items() if at not in own),
        adapted=adapted,
        attended=layers * getattr(getattr(model, "config", None), "hidden_size", 0),
        vocabulary=logits.shape[-1],
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Forecast:
    """What a step and a run by one method are predicted to need. Predictions, not measurements.

    Attributes:
        method: of `METHODS`.
        seconds: of a step, all devices together working on it.
        memory: bytes of tensors at the peak, on each device.
        fits: whether that is within a device's memory.
        device_hours: of the run, over all devices.
        ratio: of a step's seconds to those of the plain step.
        parts: seconds of a step by part.
    """

    method: str
    seconds: float
    memory: float
    fits: bool
    device_hours: float
    ratio: float
    parts: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Forecaster:
    """Predicts steps of one model on one kind of hardware.

    Args:
        build: the model of so many layers, as it is trained, of full width.
        depth: layers of the model that is meant.
        length: of every row, in tokens.
        group_size: rows of every unit.
        hardware: that is meant.
        micro_batch: most rows in one pass.
    """

    build: Callable[[int], nn.Module]
    depth: int
    length: int
    group_size: int
    hardware: Hardware
    micro_batch: int

    @cached_property
    def looks(self) -> Looks:
        """At the model of full depth, from those of one layer and of two."""
        one, two = (look(self.build(layers), layers, self.length) for layers in (1, 2))
        return one.further(two, self.depth - 1)

    def _trained(self, form: Form) -> Counter[tuple[int, int]]:
        """The trained matrices of this form where users share passes."""
        found: Counter[tuple[int, int]] = Counter()
        for (p, q, trains), number in self.looks.matrices.items():
            positions, device = self.group_size * self.length, self.hardware.kind
            cheaper = choose_form(units=2, positions=positions, p=p, q=q, device=device)
            if trains and form is cheaper:
                found[p, q] += number
        return found

    @cached_property
    def formed(self) -> float:
        """Bytes of the gradients that are formed of one unit where users share passes."""
        return 4.0 * sum(n * p * q for (p, q), n in self._trained(Form.FORMED).items())

    @cached_property
    def units(self) -> int:
        """Units in a pass: as many as the engines take; plain training's are as large."""
        rows = rows_per_pass(self.length, self.micro_batch, torch.device(self.hardware.kind))
        room = self.hardware.memory / 4 if math.isfinite(self.hardware.memory) else 0.0
        room = max(room, FORMED_BYTES, 4.0 * self.looks.numbers, 16.0 * self.looks.trained)
        most = min(rows // self.group_size, room // max(1.0, self.formed), MOST_PLACES)
        return max(1, int(most))

    def _pass_seconds(self, private: bool) -> float:
        """Of the gradients of one pass."""
        looks, hardware, units = self.looks, self.hardware, self.units
        rows, seen = units * self.group_size, max(1, self.length - 1)
        positions, gradient = rows * seen, 4.0 * looks.trained
        flops, moved = 0.0, rows * looks.kept * _PER_KEPT + gradient * _PER_GRADIENT
        for (p, q, trains), number in looks.matrices.items():
            flops += number * (3 if trains else 2) * 2.0 * positions * p * q
            moved += number * (3 if trains else 2) * 4.0 * (positions * (p + q) + p * q)
        if private:
            moved += gradient * _PER_SUMMED + (units > 1) * units * self.formed * _PER_FORMED
            unit = self.group_size * seen
            for (p, q), number in self._trained(Form.GHOST).items():
                flops += number * 2.0 * units * unit**2 * (p + q)
                moved += number * 4.0 * units * (2 * unit * (p + q) + _PER_GRAM * unit**2)
        else:
            moved += positions * 4.0 * looks.adapted * _PER_ADAPTED
        logits = float(positions * looks.vocabulary)
        device = flops / hardware.flops + (moved + 4 * logits * _PER_LOGIT) / hardware.bytes
        device += rows * 14.0 * seen**2 * looks.attended / hardware.attention
        return (device + 2 * logits / hardware.exponentials) / hardware.reached

    def _parts(self, passes: float, private: bool) -> dict[str, float]:
        """Seconds of a step's parts on each device; ``passes`` are one device's."""
        hardware, trained = self.hardware, self.looks.trained
        speed, own = hardware.bytes * hardware.reached, trained / hardware.count
        drawn = own * _NOISE_BYTES / speed if hardware.kind == "cuda" else own / hardware.noise
        sent = trained * (12.0 if private else 8.0) * (1 - 1 / hardware.count)
        return {
            "gradients": passes * self._pass_seconds(private),
            "exchange": sent / hardware.link / hardware.reached,
            "noise": drawn * private,
            "update": trained * (_ADAM_BYTES + private * _MEAN_BYTES) / speed,
        }

    def _memory(self, passes: float, private: bool) -> float:
        """Bytes of tensors at the peak of a step."""
        looks, units, again = self.looks, self.units, passes > 1
        rows, gradient = units * self.group_size, 4.0 * looks.trained
        positions = rows * max(1, self.length - 1)
        begins = rows * looks.kept + 2 * 4.0 * positions * looks.vocabulary
        ends, held = gradient, gradient * again
        if private:
            taken = units * math.ceil(passes) * (math.ceil(passes) + 2)
            held = gradient * (1 if taken <= _NARROW / self.hardware.count else 2)
            formed = units * self.formed
            head = max((p * q for p, q in self._trained(Form.FORMED)), default=0) * 4.0 * units
            begins += again * min(formed, FORMED_BYTES + head)
            ghosts = self._trained(Form.GHOST).items()
            ends = formed + 4.0 * positions * sum(n * (p + q) for (p, q), n in ghosts)
            held, ends = (held, ends) if again else (0.0, ends + held)
        return 4.0 * looks.numbers + held + max(begins, ends) + _ADAM_STATE * looks.trained

    def forecast(self, method: str, *, gradients: float, steps: int) -> Forecast:
        """Time and memory.

        Args:
            method: of `METHODS`.
            gradients: B, of examples a step, over all devices.
            steps: of the run.
        """
        require_positive("gradients", gradients)
        passes = max(1.0, gradients / self.units / self.group_size / self.hardware.count)
        private = method != "plain"
        parts, memory = self._parts(passes, private), self._memory(passes, private)
        seconds = sum(parts.values())
        return Forecast(
            method=method,
            seconds=seconds,
            memory=memory,
            fits=memory <= self.hardware.memory,
            device_hours=seconds * steps * self.hardware.count / 3600,
            ratio=seconds / sum(self._parts(passes, False).values()),
            parts=parts,
        )
