"""Families that route each token to a few of their experts."""

from __future__ import annotations

from benchmarks.families.sizes import ENDS, Family, Sizes, of


def expert_families(sizes: Sizes) -> dict[str, Family]:
    """The families by name."""
    width = sizes.width
    half = sizes.half
    hidden = sizes.hidden
    vocabulary = sizes.vocabulary
    positions = sizes.positions
    llama = sizes.llama
    experts = sizes.experts
    latent = sizes.latent
    return {
        "Mixtral": of("experts", "mixtral", llama, num_local_experts=4, num_experts_per_tok=2),
        "Qwen2-MoE": of("experts", "qwen2_moe", experts, shared_expert_intermediate_size=half),
        "Qwen3-MoE": of("experts", "qwen3_moe", experts),
        "OLMoE": of("experts", "olmoe", experts),
        "DeepSeek-V2": of("experts", "deepseek_v2", latent, topk_method="greedy"),
        "DeepSeek-V3": of("experts", "deepseek_v3", latent),
        "GLM-4-MoE": of("experts", "glm4_moe", latent),
        "ERNIE 4.5 MoE": of("experts", "ernie4_5_moe", experts, moe_num_experts=4, moe_k=2),
        "GPT-OSS": of(
            "experts",
            "gpt_oss",
            llama,
            num_local_experts=4,
            num_experts_per_tok=2,
            sliding_window=4,
        ),
        "Granite-MoE": of(
            "experts", "granitemoe", llama, num_local_experts=4, num_experts_per_tok=2
        ),
        "Phi-3.5-MoE": of("experts", "phimoe", llama, num_local_experts=4, num_experts_per_tok=2),
        "DBRX": of(
            "experts",
            "dbrx",
            ENDS,
            vocab_size=vocabulary,
            d_model=width,
            n_layers=2,
            n_heads=2,
            max_seq_len=positions,
            attn_config={"kv_n_heads": 1, "clip_qkv": 8.0, "rope_theta": 1e4},
            ffn_config={
                "ffn_hidden_size": hidden,
                "moe_num_experts": 4,
                "moe_top_k": 2,
                "moe_loss_weight": 0.01,
            },
        ),
        "JetMoE": of(
            "experts", "jetmoe", llama, kv_channels=half, num_local_experts=4, num_experts_per_tok=2
        ),
        "Llama 4": of(
            "experts",
            "llama4_text",
            llama,
            intermediate_size_mlp=hidden,
            num_local_experts=4,
            num_experts_per_tok=1,
        ),
    }
