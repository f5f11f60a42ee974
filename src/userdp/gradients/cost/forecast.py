"""`Forecast`: time, memory and money of a step and of a run, plain and private, by method.

Nothing in it is measured on the machine that is meant. A step is taken apart into the gradients
(counted, `userdp.gradients.cost.counting`), the exchange of their sum between devices, the noise
and the optimizer's update.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import nn

from userdp.gradients.cost.counting import PLAIN, Count, StepCount, Work, count_step, units_in_pass
from userdp.gradients.cost.hardware import Hardware
from userdp.gradients.cost.prediction import seconds_of
from userdp.gradients.cost.recording import Kind, Live, Op, Recorder
from userdp.gradients.engines.choice import choose
from userdp.gradients.engines.engine import Task
from userdp.gradients.engines.forms import Form
from userdp.gradients.engines.running import running_dtype
from userdp.gradients.gaussian import draw_on_device
from userdp.gradients.models import trainable_parameters
from userdp.noise.gaussian import DRAWS
from userdp.vocabulary import require_count, require_positive

ADAM_BYTES = 28.0
"""Bytes that AdamW moves for a float32 parameter: four numbers read, three written."""

ADAM_STATE = 8.0
"""Bytes that AdamW keeps for one."""

SUM_BYTES = 8.0
"""Bytes of a float64 sum for a parameter; half of them where it is float32 while passes run."""

AVERAGED_BYTES = 16.0
"""Bytes that turning a float64 sum into a float32 mean moves for a parameter, at least."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Forecast:
    """What a step and a run by one method are predicted to need. Predictions, not measurements.

    Attributes:
        method: "plain", or the engine.
        seconds: of a step, all devices together working on it.
        memory: bytes at the peak, on each device.
        fits: whether that is within a device's memory.
        device_hours: of the run, over all devices.
        price: of the run, in the unit of the price per hour; None without one.
        ratio: of a step's seconds to those of the plain step.
        parts: seconds of a step by part.
    """

    method: str
    seconds: float
    memory: float
    fits: bool
    device_hours: float
    price: float | None
    ratio: float
    parts: Mapping[str, float]


class Forecaster:
    """Predicts steps of one model on one kind of hardware.

    Args:
        work: the model, its loss, the length and the group size.
        hardware: that is meant.
        micro_batch: most rows in one pass.
    """

    def __init__(self, work: Work, hardware: Hardware, *, micro_batch: int) -> None:
        self.work, self.hardware = work, hardware
        self._micro_batch = require_count("micro_batch", micro_batch)
        self._counts: dict[tuple[str, int, bool], StepCount] = {}

    @cached_property
    def _whole(self) -> nn.Module:
        """The model at its full depth, without memory: for its shapes."""
        with torch.device("meta"):
            return self.work.build(self.work.depth)

    @cached_property
    def trained(self) -> int:
        """How many numbers train."""
        return sum(p.numel() for p in trainable_parameters(self._whole).values())

    @cached_property
    def engine(self) -> str:
        """The one that "auto" takes."""
        model = self.work.build(1)
        chosen = choose(model, self.work.loss, self.work.units(2), micro_batch=self._micro_batch)
        return chosen.engine

    def units_in_pass(self, method: str) -> int:
        """As many as the engine takes on this hardware; plain training's passes are equal."""
        if method == "reference" or (method == PLAIN and self.engine == "reference"):
            return 1
        task = Task(
            model=self._whole,
            loss=self.work.loss,
            units=self.work.units(self._micro_batch),
            l2_clip_norm=1.0,
            micro_batch=self._micro_batch,
        )
        form = Form.FORMED if self.engine == "lora" else None
        return units_in_pass(task, form, device=self.hardware.kind, memory=self.hardware.memory)

    def _count(self, method: str, units: int, *, narrow: bool) -> StepCount:
        """Counted with a sum that is float32 while passes run, if ``narrow``, or float64."""
        key = method, units, narrow
        if key not in self._counts:
            parts = self.hardware.count if narrow else None
            self._counts[key] = count_step(self.work, method, units=units, parts=parts)
        return self._counts[key]

    def _parts(self, method: str, passes: float, units: int, *, narrow: bool) -> dict[str, float]:
        """Seconds of a step's parts on each device; ``passes`` are one device's."""
        hardware, trained, private = self.hardware, float(self.trained), method != PLAIN
        update = _streamed(trained * (ADAM_BYTES + (AVERAGED_BYTES if private else 0.0)))
        exchanged = trained * (12.0 if private else 8.0) * (1 - 1 / hardware.count)
        return {
            "gradients": seconds_of(self._count(method, units, narrow=narrow).of(passes), hardware),
            "exchange": exchanged / hardware.link / hardware.reached,
            "noise": self._noise_seconds if private else 0.0,
            "update": seconds_of(update, hardware),
        }

    @cached_property
    def _noise_seconds(self) -> float:
        """Of a step's noise, of which each device draws that of its own share of the numbers."""
        rate, own = self.hardware.rates.noise, self.trained / self.hardware.count
        if math.isfinite(rate):
            return own / rate
        numbers = 1 << 16
        recorder = Recorder(Live({}, 1), copies=False)
        with recorder:
            for _ in range(DRAWS):
                draw_on_device(torch.Generator().manual_seed(0), numbers)
        share = own / numbers
        # A block is larger than what was recorded: as many bytes a number, and fewer calls.
        ops = (Count({_scaled(op, share): 1}) for op in recorder.ops)
        return sum(seconds_of(op, self.hardware) for op in ops)

    def forecast(
        self, method: str, *, gradients: float, steps: int, price_per_hour: float | None = None
    ) -> Forecast:
        """Time, memory and money.

        Args:
            method: "plain" or an engine.
            gradients: B, of examples a step, over all devices.
            steps: of the run.
            price_per_hour: of one device.
        """
        require_positive("gradients", gradients)
        if price_per_hour is not None:
            require_positive("price_per_hour", price_per_hour)
        hardware, units = self.hardware, self.units_in_pass(method)
        passes = self._passes(units, gradients)
        narrow = self._narrow(method, passes, units)
        parts = self._parts(method, passes, units, narrow=narrow)
        seconds = sum(parts.values())
        count = self._count(method, units, narrow=narrow)
        memory = count.peak(passes) + ADAM_STATE * self.trained
        device_hours = seconds * steps * hardware.count / 3600
        beside = self.units_in_pass(PLAIN)
        plain = self._parts(PLAIN, self._passes(beside, gradients), beside, narrow=False)
        return Forecast(
            method=method,
            seconds=seconds,
            memory=memory,
            fits=memory <= hardware.memory,
            device_hours=device_hours,
            price=None if price_per_hour is None else price_per_hour * device_hours,
            ratio=seconds / sum(plain.values()),
            parts=parts,
        )

    def _narrow(self, method: str, passes: float, units: int) -> bool:
        """Whether a device's sum of so many passes is float32, as in a run."""
        if method not in ("bookkeeping", "lora"):
            return False
        task = Task(
            model=self.work.build(1),
            loss=self.work.loss,
            units=self.work.units(2),
            l2_clip_norm=1.0,
            parts=self.hardware.count,
        )
        return running_dtype(task, [units] * math.ceil(passes)) == torch.float32

    def _passes(self, units: int, gradients: float) -> float:
        """Of each device."""
        return max(1.0, gradients / (units * self.work.group_size) / self.hardware.count)

    def gradients_for(self, device_hours: float, *, steps: int) -> float:
        """B, the gradients a step that a run of so many device hours buys, by `engine`.

        May be below one pass, or negative, where not even the noise and the update fit.
        """
        require_positive("device_hours", device_hours)
        units, hardware = self.units_in_pass(self.engine), self.hardware
        seconds = device_hours * 3600 / hardware.count / steps

        def passes(*, narrow: bool) -> float:
            one, two = (
                sum(self._parts(self.engine, n, units, narrow=narrow).values()) for n in (1.0, 2.0)
            )
            return 1 + (seconds - one) / (two - one)

        found = passes(narrow=False)
        if self._narrow(self.engine, found, units):
            more = passes(narrow=True)
            if self._narrow(self.engine, more, units):
                found = more
        return found * units * self.work.group_size * hardware.count


def _streamed(size: float) -> Count:
    """One pass over so many bytes."""
    return Count(
        {
            Op(
                name="update",
                kind=Kind.STREAM,
                dtype="float32",
                flops=0.0,
                moved=size,
                numbers=0.0,
                allocated=0.0,
            ): 1
        }
    )


def _scaled(op: Op, share: float) -> Op:
    return Op(
        name=op.name,
        kind=op.kind,
        dtype=op.dtype,
        flops=op.flops * share,
        moved=op.moved * share,
        numbers=op.numbers * share,
        allocated=op.allocated * share,
    )
