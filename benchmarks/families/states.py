"""Families with states in place of attention, and with both."""

from __future__ import annotations

from typing import Any

from benchmarks.families.sizes import ENDS, Family, Sizes, of


def state_families(sizes: Sizes) -> dict[str, Family]:
    """The families by name."""
    width = sizes.width
    half = sizes.half
    quarter = sizes.quarter
    hidden = sizes.hidden
    vocabulary = sizes.vocabulary
    positions = sizes.positions
    llama = sizes.llama
    many_heads = sizes.many_heads
    experts = sizes.experts
    mamba = sizes.mamba
    mamba2 = sizes.mamba2
    linear: dict[str, Any] = {
        "layer_types": ["linear_attention", "full_attention"],
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 2,
        "linear_key_head_dim": half,
        "linear_value_head_dim": half,
    }
    heads: dict[str, Any] = {
        "mamba_n_heads": 4,
        "mamba_d_head": half,
        "mamba_n_groups": 1,
        "mamba_d_state": 4,
        "mamba_chunk_size": 8,
    }
    return {
        "Mamba": of("state space", "mamba", mamba),
        "Mamba-2": of("state space", "mamba2", mamba2),
        "Falcon-Mamba": of("state space", "falcon_mamba", mamba),
        "RWKV": of(
            "state space",
            "rwkv",
            mamba,
            attention_hidden_size=width,
            context_length=positions,
            rescale_every=0,
        ),
        "xLSTM": of(
            "state space",
            "xlstm",
            ENDS,
            vocab_size=vocabulary,
            hidden_size=2 * width,
            embedding_dim=2 * width,
            num_heads=2,
            num_blocks=2,
            num_hidden_layers=2,
            chunk_size=8,
        ),
        "RecurrentGemma": of(
            "hybrid",
            "recurrent_gemma",
            llama,
            lru_width=width,
            attention_window_size=8,
            num_hidden_layers=3,
        ),
        "Jamba": of(
            "hybrid",
            "jamba",
            experts,
            mamba_d_state=4,
            mamba_dt_rank=quarter,
            use_mamba_kernels=False,
            num_hidden_layers=4,
            attn_layer_period=2,
            attn_layer_offset=1,
        ),
        "Bamba": of(
            "hybrid",
            "bamba",
            llama,
            **heads,
            attn_layer_indices=[1],
        ),
        "Zamba": of(
            "hybrid",
            "zamba",
            many_heads,
            num_hidden_layers=6,
            attn_layer_period=3,
            attn_layer_offset=2,
            n_mamba_heads=2,
            mamba_d_state=4,
            mamba_dt_rank=quarter,
            use_mamba_kernels=False,
        ),
        "Zamba2": of(
            "hybrid",
            "zamba2",
            many_heads,
            num_hidden_layers=4,
            mamba_d_state=4,
            mamba_headdim=half,
            n_mamba_heads=4,
            mamba_ngroups=1,
            chunk_size=8,
            hybrid_layer_ids=[1, 3],
            layers_block_type=["mamba", "hybrid"] * 2,
            use_mamba_kernels=False,
            attention_head_dim=width,
            adapter_rank=4,
        ),
        "Falcon-H1": of(
            "hybrid",
            "falcon_h1",
            llama,
            mamba_d_ssm=2 * width,
            **heads,
        ),
        "Nemotron-H": of(
            "hybrid",
            "nemotron_h",
            llama,
            hybrid_override_pattern="M*-",
            num_hidden_layers=3,
            mamba_num_heads=4,
            mamba_head_dim=half,
            n_groups=1,
            ssm_state_size=4,
            chunk_size=8,
        ),
        "Granite-4 (hybrid)": of(
            "hybrid",
            "granitemoehybrid",
            llama,
            layer_types=["mamba", "attention"],
            **heads,
            num_local_experts=0,
            shared_intermediate_size=hidden,
        ),
        "LFM2": of(
            "hybrid",
            "lfm2",
            llama,
            layer_types=["conv", "full_attention"],
            block_auto_adjust_ff_dim=False,
            conv_L_cache=3,
        ),
        "Qwen3-Next": of(
            "hybrid",
            "qwen3_next",
            experts,
            **linear,
            shared_expert_intermediate_size=half,
        ),
        "Qwen3.5": of(
            "hybrid",
            "qwen3_5_text",
            llama,
            **linear,
        ),
        "OLMo-Hybrid": of(
            "hybrid",
            "olmo_hybrid",
            many_heads,
            **linear,
        ),
        "MiniMax": of(
            "hybrid",
            "minimax",
            llama,
            layer_types=["linear_attention", "full_attention"],
            num_local_experts=4,
            num_experts_per_tok=2,
            block_size=8,
        ),
    }
