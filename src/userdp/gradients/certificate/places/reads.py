"""What Python learns of a tensor: of its shape, of its kind, or by holding its memory."""

from __future__ import annotations

import torch

from userdp.gradients.certificate.places.place import getter, named, setter

READS_SHAPES = frozenset(
    [
        *named("size numel nelement __len__ stride storage_offset is_contiguous nbytes"),
        getter("shape"),
        getter("nbytes"),
    ]
)
"""What makes numbers of a shape: those of a selection count somebody's tokens."""

_KINDS = (
    "dtype device layout ndim is_leaf requires_grad is_cuda is_cpu is_sparse is_quantized is_meta "
    "is_nested is_mps is_xpu is_mkldnn itemsize _version"
)
READS_KINDS = frozenset(
    [
        *named("dim ndimension is_floating_point is_complex is_signed is_inference is_conj is_neg"),
        *named("element_size get_device __hash__"),
        *map(getter, _KINDS.split()),
    ]
)
"""What tells of a tensor's kind, which is the same whatever it holds and however long it is."""

_profiler = torch.ops.profiler
TIMES = {
    _profiler._record_function_enter_new,
    _profiler._record_function_exit,
    _profiler._record_function_exit._RecordFunction,
}
"""What `torch.profiler.record_function` calls, as sharding does in backward passes."""

ASKS = READS_SHAPES | READS_KINDS | TIMES | {torch.device}
"""What is asked without a look at numbers; libraries name a device once and keep it."""

HANDS_OUT = frozenset([*named("data_ptr set_ share_memory_"), getter("data"), setter("data")])
"""What hands out a tensor's memory, or puts another in its place: writes there are not counted."""

FIXED_LENGTH = frozenset(named("nonzero where"))
"""What returns a tuple of a tensor for each dimension, so that its length counts nothing."""

KEEPS_STATISTICS = frozenset(
    named(
        "batch_norm instance_norm native_batch_norm batch_norm_update_stats "
        "fused_moving_avg_obs_fake_quant"
    )
)
"""What may write to its running statistics without a count of the write."""
