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
def _attention(module: nn.Module, tape: Watcher) -> Callable[..., Any]:
    original = module.forward

    def forward(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> Any:
        simple = (
            query is key is value
            and query.dim() == 3
            and key_padding_mask is None
            and (attn_mask is None or attn_mask.dim() == 2)
            and average_attn_weights
            and not (is_causal and attn_mask is None)
            and _is_plain(module)
        )
        if not simple:
            return original(
                query, key, value, key_padding_mask, need_weights, attn_mask,
                average_attn_weights, is_causal,
            )  # fmt: skip
        return _run(module, query, attn_mask, weights=need_weights)

    return forward


def _is_plain(module: Any) -> bool:
    return (
        module._qkv_same_embed_dim
        and module.bias_k is None
        and module.bias_v is None
        and not module.add_zero_attn
    )


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
    y = F.linear(
        y.transpose(1, 2).reshape(rows, length, width),
        module.out_proj.weight,
        module.out_proj.bias,
    )
    return (
        y if module.batch_first else y.transpose(0, 1),
        None if shares is None else shares.mean(1),
    )
