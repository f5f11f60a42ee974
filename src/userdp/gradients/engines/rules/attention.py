"""`nn.MultiheadAttention` over one sequence, as products that have rules of their own.

torch hands the whole module to one function (`F.multi_head_attention_forward`), through which no
row could be followed. Written out, its projections are linear layers. The same numbers up to
rounding. It stands in for self-attention with one projection of all three; whatever else runs as
torch wrote it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from userdp.gradients.engines.layer import Watcher, replaces


@replaces(lambda kind: kind is nn.MultiheadAttention)
def _attention(module: Any, tape: Watcher) -> Callable[..., Any]:
    original = module.forward

    def forward(query: Tensor, key: Tensor, value: Tensor, *rest: Any, **given: Any) -> Any:
        mask = given.get("attn_mask")
        simple = (
            query is key is value
            and not rest
            and query.dim() == 3
            and given.get("key_padding_mask") is None
            and (mask is None or mask.dim() == 2)
            and given.get("average_attn_weights", True)
            and not (given.get("is_causal") and mask is None)
            and module._qkv_same_embed_dim
            and module.bias_k is module.bias_v is None
            and not module.add_zero_attn
        )
        if not simple:
            return original(query, key, value, *rest, **given)
        return _run(module, query, mask, weights=given.get("need_weights", True))

    return forward


def _run(
    module: Any, query: Tensor, mask: Tensor | None, *, weights: bool
) -> tuple[Tensor, Tensor | None]:
    x = query if module.batch_first else query.transpose(0, 1)
    rows, length, width = x.shape
    heads, dropout = module.num_heads, module.dropout if module.training else 0.0
    q, k, v = (
        part.view(rows, length, heads, width // heads).transpose(1, 2)
        for part in F.linear(x, module.in_proj_weight, module.in_proj_bias).chunk(3, dim=-1)
    )
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape, dtype=x.dtype, device=x.device).masked_fill(mask, -torch.inf)
    shares = None
    if weights:
        scores = q @ k.transpose(-2, -1) / math.sqrt(width // heads)
        shares = F.dropout((scores if mask is None else scores + mask).softmax(-1), dropout)
        y = shares @ v
    else:
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)
    out, y = module.out_proj, y.transpose(1, 2).reshape(rows, length, width)
    y = F.linear(y, out.weight, out.bias)
    return (
        y if module.batch_first else y.transpose(0, 1),
        None if shares is None else shares.mean(1),
    )
