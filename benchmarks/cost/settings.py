"""The settings that the model is fitted to, and the others that it is held against."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import nn

from benchmarks.decoders import Shape
from benchmarks.paper_size.measure import MICRO_BATCH
from benchmarks.paper_size.settings import Setting, build, setting_of
from userdp.gradients import causal_lm_loss
from userdp.gradients.cost import Work

_SMALL = Shape(layers=2, width=512, heads=8, vocabulary=16384, length=128)
_WIDE = replace(_SMALL, width=1024, heads=16, vocabulary=8192)
_ADAPTED = replace(_SMALL, width=768, heads=12, vocabulary=8192)

FITTED = (
    Setting(key="full_d512_g1", model="", shape=_SMALL, sequences=16, group=1),
    Setting(key="full_d512_g4", model="", shape=_SMALL, sequences=16, group=4),
    Setting(key="full_d1024_g1", model="", shape=_WIDE, sequences=16, group=1),
    Setting(key="full_d1024_g4", model="", shape=_WIDE, sequences=16, group=4),
    Setting(key="lora_d768_g1", model="", shape=_ADAPTED, sequences=16, group=1, rank=32),
    Setting(key="lora_d768_g4", model="", shape=_ADAPTED, sequences=16, group=4, rank=32),
)
"""Small in depth and vocabulary, so that fitting takes minutes."""

HELD = tuple(map(setting_of, ("full_small_g4", "full_medium", "lora_small_g4", "lora_large_g4")))
"""At paper size, and measured for this alone. (Two earlier trials, of four others each, were of
engines that have changed since, and of rates fitted to other operations: docs/cost.md.)"""


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is counted of a setting.

    Attributes:
        work: for the cost model.
        engine: the one that `auto` takes.
    """

    work: Work
    engine: str


def task_of(setting: Setting) -> Task:
    """The setting for the cost model."""

    def built(layers: int) -> nn.Module:
        return build(replace(setting, shape=replace(setting.shape, layers=layers)))

    work = Work(
        build=built,
        depth=setting.shape.layers,
        loss=causal_lm_loss,
        vocabulary=setting.shape.vocabulary,
        length=setting.shape.length,
        group_size=setting.group,
    )
    return Task(work=work, engine="bookkeeping" if setting.rank is None else "lora")


__all__ = ["FITTED", "HELD", "MICRO_BATCH", "Setting", "Task", "build", "task_of"]
