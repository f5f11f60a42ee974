"""`Hardware`: what a machine does in a second, by public figures or by a fit.

The figures of accelerators are those of their makers' data sheets, dense (without sparsity), at the
largest power limit. No program reaches them: a prediction divides by `REACHED`, which is an
assumption and named as one. The figures of ``cpu`` are of one thread of one machine, fitted by
``python -m benchmarks.cost fit``, and are what was reached.

No price is in this table: what an hour costs is a matter of contract, and the user's to say.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from userdp.errors import UseError
from userdp.vocabulary import require_count

REACHED = 0.5
"""The share of a data sheet's figures that an accelerator is assumed to reach."""

_CALL = 1e-5
"""Seconds in which the host hands an accelerator one operation of eager PyTorch: an assumption."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rates:
    """What one device does in a second. Infinite where it costs nothing beside the rest.

    Attributes:
        products: operations of products, by dtype.
        attention: of fused attention, by dtype.
        product_bytes: bytes that products read and write.
        special: numbers of exponentials and their like.
        mixed: bytes of arithmetic between floating dtypes.
        stream: bytes of all other operations.
        fresh: bytes of memory that the system must clear first.
        call: seconds of the host for one operation.
        noise: numbers of noise, where it is not drawn by operations of torch.
    """

    products: Mapping[str, float]
    attention: Mapping[str, float]
    product_bytes: float
    special: float
    mixed: float
    stream: float
    fresh: float
    call: float
    noise: float = math.inf


@dataclass(frozen=True, kw_only=True, slots=True)
class Hardware:
    """One kind of device, and how many of it.

    Attributes:
        name: in `TABLE`.
        kind: "cpu" or "cuda": for which engines choose forms and passes.
        rates: of one device.
        memory: bytes of one device; infinite where it is the machine's.
        link: bytes a second that a device sends to others.
        source: of the figures.
        reached: the share of the figures that is assumed to be reached.
        count: devices.
    """

    name: str
    kind: str
    rates: Rates
    memory: float
    link: float
    source: str
    reached: float = REACHED
    count: int = 1

    @property
    def waits(self) -> bool:
        """Whether the host computes itself, so that its time and the device's add up."""
        return self.kind == "cpu"


def _accelerator(
    name: str, *, source: str, gib: int, tb_s: float, link_gb_s: float, **tflops: float
) -> Hardware:
    products = {dtype: value * 1e12 for dtype, value in tflops.items()}
    bandwidth = tb_s * 1e12
    return Hardware(
        name=name,
        kind="cuda",
        rates=Rates(
            products=products,
            attention=products,
            product_bytes=bandwidth,
            special=math.inf,
            mixed=bandwidth,
            stream=bandwidth,
            fresh=math.inf,
            call=_CALL,
        ),
        memory=gib * 2.0**30,
        link=link_gb_s * 1e9,
        source=source,
    )


TABLE: dict[str, Hardware] = {
    one.name: one
    for one in (
        # float32 without TF32, which training leaves off; float64 on tensor cores where it exists.
        _accelerator(
            "a100",
            source="NVIDIA A100 Tensor Core GPU data sheet (SXM, 80 GB)",
            gib=80, tb_s=2.039, link_gb_s=300,
            float32=19.5, float64=19.5, bfloat16=312, float16=312,
        ),
        _accelerator(
            "h100",
            source="NVIDIA H100 Tensor Core GPU data sheet (SXM, 80 GB)",
            gib=80, tb_s=3.35, link_gb_s=450,
            float32=67, float64=67, bfloat16=989, float16=989,
        ),
        _accelerator(
            "h200",
            source="NVIDIA H200 Tensor Core GPU data sheet (SXM, 141 GB)",
            gib=141, tb_s=4.8, link_gb_s=450,
            float32=67, float64=67, bfloat16=989, float16=989,
        ),
        _accelerator(
            "l4",
            source="NVIDIA L4 Tensor Core GPU data sheet",
            gib=24, tb_s=0.3, link_gb_s=32,
            float32=30.3, float64=30.3 / 64, bfloat16=121, float16=121,
        ),
        _accelerator(
            "l40s",
            source="NVIDIA L40S GPU data sheet",
            gib=48, tb_s=0.864, link_gb_s=32,
            float32=91.6, float64=91.6 / 64, bfloat16=362, float16=362,
        ),
    )
}  # fmt: skip

CPU = Hardware(
    name="cpu",
    kind="cpu",
    rates=Rates(
        products={"float32": 180.6e9, "float64": 83.8e9},
        attention={"float32": 62.1e9},
        product_bytes=13.7e9,
        special=1.013e9,
        mixed=11.4e9,
        stream=15.2e9,
        fresh=19.3e9,
        call=7.75e-6,
        noise=25e6,
    ),
    memory=math.inf,
    link=math.inf,
    source="fitted: one thread of an Intel Xeon with AVX-512 and AMX, torch 2.13, 2026-11-27",
    reached=1.0,
)

_NAME = re.compile(r"(?P<name>[a-z0-9]+?)(x(?P<count>[1-9][0-9]{0,4}))?")


def hardware_of(words: str) -> Hardware:
    """The hardware of a name such as ``h100`` or ``h100x8``.

    Raises:
        UseError: there is no such device in the table.

    >>> hardware_of("h100x8").count
    8
    """
    known = {**TABLE, CPU.name: CPU}
    match = _NAME.fullmatch(words.lower())
    if match is None or match["name"] not in known:
        raise UseError(
            f"no figures are known of the hardware {words!r}, so nothing can be predicted for it",
            hint=f"take one of {', '.join(known)}, and how many: h100x8",
        )
    count = require_count("devices", int(match["count"] or 1))
    if count > 1 and match["name"] == CPU.name:
        raise UseError(
            "cpu means one thread of this machine, and how several share its memory is not fitted",
            hint="leave the number out: --hardware cpu",
        )
    return replace(known[match["name"]], count=count)
