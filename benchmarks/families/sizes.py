"""What a `Family` is, and the sizes that those of one kind of layer have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

ENDS: dict[str, Any] = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """One family.

    Attributes:
        kind: what its layers are: attention, experts, state space, or a hybrid.
        model_type: as `transformers` names its configuration.
        config: its sizes, and what else makes it tiny.
    """

    kind: str
    model_type: str
    config: Mapping[str, Any] = field(default_factory=dict)


def of(kind: str, model_type: str, *configs: Mapping[str, Any], **more: Any) -> Family:
    """The family whose configuration is all of these, the later ones over the earlier."""
    merged: dict[str, Any] = {}
    for config in configs:
        merged |= config
    return Family(kind=kind, model_type=model_type, config=merged | more)


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """What the configurations of tiny models begin with.

    Attributes:
        width: of a layer, a multiple of 16; most other sizes follow from it.
        vocabulary: tokens.
        positions: the longest input.
    """

    width: int
    vocabulary: int
    positions: int

    @property
    def half(self) -> int:
        return self.width // 2

    @property
    def quarter(self) -> int:
        return self.width // 4

    @property
    def hidden(self) -> int:
        return 3 * self.width // 2

    @property
    def bare(self) -> dict[str, Any]:
        """What every configuration has."""
        return {"vocab_size": self.vocabulary, **ENDS}

    @property
    def falcon(self) -> dict[str, Any]:
        """Attention, with all other sizes as they follow from these."""
        return {
            **self.bare,
            "hidden_size": self.width,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
        }

    @property
    def llama(self) -> dict[str, Any]:
        """Attention in the manner of Llama."""
        return {
            **self.falcon,
            "intermediate_size": self.hidden,
            "num_key_value_heads": 1,
            "head_dim": self.half,
            "max_position_embeddings": self.positions,
        }

    @property
    def many_heads(self) -> dict[str, Any]:
        """The same, with as many keys as queries."""
        return {**self.llama, "num_key_value_heads": 2}

    @property
    def gpt2(self) -> dict[str, Any]:
        """Attention in the manner of GPT-2."""
        return {
            **self.bare,
            "n_embd": self.width,
            "n_layer": 2,
            "n_head": 2,
            "n_positions": self.positions,
        }

    @property
    def experts(self) -> dict[str, Any]:
        """Llama with experts."""
        return {
            **self.llama,
            "moe_intermediate_size": self.half,
            "num_experts": 4,
            "num_experts_per_tok": 2,
        }

    @property
    def latent(self) -> dict[str, Any]:
        """Experts, and attention over latent keys and values."""
        return {
            **self.experts,
            "num_key_value_heads": 2,
            "q_lora_rank": self.half,
            "kv_lora_rank": self.half,
            "qk_nope_head_dim": self.half,
            "qk_rope_head_dim": self.half,
            "v_head_dim": self.half,
            "n_routed_experts": 4,
            "n_shared_experts": 1,
            "n_group": 2,
            "topk_group": 1,
            "first_k_dense_replace": 1,
        }

    @property
    def mamba(self) -> dict[str, Any]:
        """States in place of attention."""
        return {
            **self.bare,
            "hidden_size": self.width,
            "state_size": 4,
            "num_hidden_layers": 2,
            "conv_kernel": 4,
            "expand": 2,
        }

    @property
    def mamba2(self) -> dict[str, Any]:
        """States by heads."""
        return {**self.mamba, "head_dim": self.half, "num_heads": 4, "n_groups": 1, "chunk_size": 8}
