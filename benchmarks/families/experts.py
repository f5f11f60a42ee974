"""Families that route each token to a few of their experts."""

from __future__ import annotations

from benchmarks.families.sizes import Family, Sizes, of


def expert_families(sizes: Sizes) -> dict[str, Family]:
    """The families by name."""
    return {
        "Mixtral": of(
            "experts", "mixtral", sizes.llama, num_local_experts=4, num_experts_per_tok=2
        ),
        "Qwen2-MoE": of(
            "experts", "qwen2_moe", sizes.experts, shared_expert_intermediate_size=sizes.half
        ),
        "Qwen3-MoE": of("experts", "qwen3_moe", sizes.experts),
        "OLMoE": of("experts", "olmoe", sizes.experts),
        "DeepSeek-V2": of("experts", "deepseek_v2", sizes.latent, topk_method="greedy"),
        "DeepSeek-V3": of("experts", "deepseek_v3", sizes.latent),
        "GLM-4-MoE": of("experts", "glm4_moe", sizes.latent),
        "ERNIE 4.5 MoE": of("experts", "ernie4_5_moe", sizes.experts, moe_num_experts=4, moe_k=2),
        "GPT-OSS": of(
            "experts",
            "gpt_oss",
            sizes.llama,
            num_local_experts=4,
            num_experts_per_tok=2,
            sliding_window=4,
        ),
        "Granite-MoE": of(
            "experts", "granitemoe", sizes.llama, num_local_experts=4, num_experts_per_tok=2
        ),
        "Phi-3.5-MoE": of(
            "experts", "phimoe", sizes.llama, num_local_experts=4, num_experts_per_tok=2
        ),
        "DBRX": of(
            "experts",
            "dbrx",
            sizes.bare,
            d_model=sizes.width,
            n_layers=2,
            n_heads=2,
            max_seq_len=sizes.positions,
            attn_config={"kv_n_heads": 1, "clip_qkv": 8.0, "rope_theta": 1e4},
            ffn_config={
                "ffn_hidden_size": sizes.hidden,
                "moe_num_experts": 4,
                "moe_top_k": 2,
                "moe_loss_weight": 0.01,
            },
        ),
        "JetMoE": of(
            "experts",
            "jetmoe",
            sizes.llama,
            kv_channels=sizes.half,
            num_local_experts=4,
            num_experts_per_tok=2,
        ),
        "Llama 4": of(
            "experts",
            "llama4_text",
            sizes.llama,
            intermediate_size_mlp=sizes.hidden,
            num_local_experts=4,
            num_experts_per_tok=1,
        ),
    }
