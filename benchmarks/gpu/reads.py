"""How often an engine waits for the device, per layer of the model.

A host that reads a number off the device stops queueing work until the device has caught up. Once
per pass that is cheap; once per layer it is not. Each engine runs over models of 2 and of 4 layers,
and what the two more layers add, halved, is what a layer costs: it should be 0. On CUDA
`torch.cuda.set_sync_debug_mode` counts; on a CPU `HostReads` counts what would wait there.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.decoders import Shape, cohort, gpt2
from benchmarks.gpu.setting import Result, Setting, process_group
from benchmarks.passes import engine_step
from userdp.gradients import causal_lm_loss
from userdp.gradients.model_randomness import secret_randomness
from userdp.gradients.modes import unwatched
from userdp.gradients.shards import shard

SHAPE = Shape(layers=2, width=32, heads=2, vocabulary=96, length=16)
LAYERS = (2, 4)
METHODS = ("auto", "reference", "sharded")
_WAITS = {
    "_local_scalar_dense",
    "nonzero",
    "_unique2",
    "unique_dim",
    "unique_consecutive",
    "masked_select",
    "equal",
}
_BY_METHOD = ("cpu", "tolist", "numpy")


class HostReads(TorchDispatchMode):
    """Counts the operations whose result a host waits for, on whatever device they run.

    Reads of one number, sizes that depend on data, masks as indices, and copies to the host.
    Numbers that live on the host anyway are counted with the rest; so compare two counts.
    """

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        name = func.overloadpacket.__name__
        masked = name in ("index", "index_put", "index_put_") and any(
            isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8)
            for index in args[1]
        )
        self.count += name in _WAITS or masked
        with unwatched():  # what is called here is no call of the model
            return func(*args, **(kwargs or {}))


@contextmanager
def counted() -> Iterator[HostReads]:
    """Within, host reads are counted, copies to the host among them."""

    def noting(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            mode.count += 1
            return original(tensor, *args, **kwargs)

        return call

    mode = HostReads()
    with mode, _patched(noting):
        yield mode


@contextmanager
def _patched(noting: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
    changes = {name: noting(getattr(Tensor, name)) for name in _BY_METHOD}
    with mock.patch.multiple(Tensor, **changes):
        yield


def waits(step: Callable[[], object], setting: Setting) -> int:
    """How often the host waits in one step."""
    if not setting.on_gpu:
        with secret_randomness("the order of the units"), counted() as mode:
            step()
        return mode.count
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return sum("synchroniz" in str(warning.message) for warning in found)


def per_layer(method: str, setting: Setting) -> Result:
    """The waits of a step of ``method`` at 2 and 4 layers, and what a layer adds."""
    units = cohort(8, 2, SHAPE, device=setting.device)
    counts = []
    for layers in LAYERS:
        model: nn.Module = gpt2(replace(SHAPE, layers=layers), device=setting.device)
        if method == "sharded":
            model = shard(model)
        step = engine_step(method, model, causal_lm_loss, units, micro_batch=8)
        step()  # the first looks at the model
        counts.append(waits(step, setting))
    added = (counts[1] - counts[0]) / (LAYERS[1] - LAYERS[0])
    return {
        "engine": method,
        "waits": dict(zip(map(str, LAYERS), counts, strict=True)),
        "per_layer": added,
    }


def reads(setting: Setting, deadline: float) -> Result:
    rows = []
    for method in METHODS:
        if method == "sharded":
            with process_group(setting.device):
                rows.append(per_layer(method, setting))
        else:
            rows.append(per_layer(method, setting))
    return {"rows": rows}
