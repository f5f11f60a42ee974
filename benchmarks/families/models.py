"""Tiny models of many families, each built by `transformers` from a configuration.

A configuration keeps whatever makes its family's code special: tied tables, norms of queries and
keys, soft caps, shared layers, several kinds of layers, experts, states. Only sizes are small.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import peft
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from userdp.training.lora import linear_layers

_ENDS: dict[str, Any] = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}


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


def _of(kind: str, model_type: str, *configs: Mapping[str, Any], **more: Any) -> Family:
    merged: dict[str, Any] = {}
    for config in configs:
        merged |= config
    return Family(kind=kind, model_type=model_type, config=merged | more)


def families(*, width: int = 16, vocabulary: int = 61, positions: int = 64) -> dict[str, Family]:
    """The families by name, at sizes that follow from ``width``, a multiple of 16."""
    half, quarter, hidden = width // 2, width // 4, 3 * width // 2
    llama: dict[str, Any] = {
        "vocab_size": vocabulary,
        "hidden_size": width,
        "intermediate_size": hidden,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": half,
        "max_position_embeddings": positions,
        **_ENDS,
    }
    many_heads = {**llama, "num_key_value_heads": 2}
    gpt2: dict[str, Any] = {
        "vocab_size": vocabulary,
        "n_embd": width,
        "n_layer": 2,
        "n_head": 2,
        "n_positions": positions,
        **_ENDS,
    }
    experts: dict[str, Any] = {
        **llama,
        "moe_intermediate_size": half,
        "num_experts": 4,
        "num_experts_per_tok": 2,
    }
    latent: dict[str, Any] = {
        **experts,
        "num_key_value_heads": 2,
        "q_lora_rank": half,
        "kv_lora_rank": half,
        "qk_nope_head_dim": half,
        "qk_rope_head_dim": half,
        "v_head_dim": half,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "n_group": 2,
        "topk_group": 1,
        "first_k_dense_replace": 1,
    }
    mamba: dict[str, Any] = {
        "vocab_size": vocabulary,
        "hidden_size": width,
        "state_size": 4,
        "num_hidden_layers": 2,
        "conv_kernel": 4,
        "expand": 2,
        **_ENDS,
    }
    mamba2 = {**mamba, "head_dim": half, "num_heads": 4, "n_groups": 1, "chunk_size": 8}
    return {
        # Attention, written before Llama.
        "GPT-2": _of("attention", "gpt2", gpt2),
        "GPT-BigCode (StarCoder)": _of("attention", "gpt_bigcode", gpt2),
        "GPT-Neo": _of(
            "attention",
            "gpt_neo",
            llama,
            num_layers=2,
            num_heads=2,
            attention_types=[[["global", "local"], 1]],
            window_size=4,
        ),
        "GPT-J": _of("attention", "gptj", gpt2, rotary_dim=quarter),
        "CodeGen": _of("attention", "codegen", gpt2, rotary_dim=quarter, n_head=4),
        "GPT-NeoX (Pythia)": _of("attention", "gpt_neox", llama),
        "OPT": _of("attention", "opt", llama, ffn_dim=hidden, word_embed_proj_dim=width),
        "BLOOM": _of(
            "attention",
            "bloom",
            _ENDS,
            vocab_size=vocabulary,
            hidden_size=width,
            n_layer=2,
            n_head=2,
        ),
        "Falcon": _of(
            "attention",
            "falcon",
            _ENDS,
            vocab_size=vocabulary,
            hidden_size=width,
            num_hidden_layers=2,
            num_attention_heads=2,
        ),
        "Falcon (ALiBi)": _of(
            "attention",
            "falcon",
            _ENDS,
            vocab_size=vocabulary,
            hidden_size=width,
            num_hidden_layers=2,
            num_attention_heads=2,
            alibi=True,
            multi_query=False,
            parallel_attn=False,
            bias=True,
        ),
        "MPT": _of(
            "attention",
            "mpt",
            _ENDS,
            vocab_size=vocabulary,
            d_model=width,
            n_layers=2,
            n_heads=2,
            max_seq_len=positions,
            expansion_ratio=2,
        ),
        "Phi": _of("attention", "phi", llama),
        "Phi-3": _of("attention", "phi3", llama),
        "StableLM": _of("attention", "stablelm", llama),
        "StarCoder2": _of("attention", "starcoder2", llama),
        "Persimmon": _of("attention", "persimmon", many_heads),
        "XGLM": _of(
            "attention",
            "xglm",
            _ENDS,
            vocab_size=vocabulary,
            d_model=width,
            num_layers=2,
            attention_heads=2,
            ffn_dim=hidden,
            max_position_embeddings=positions,
        ),
        "BioGPT": _of("attention", "biogpt", llama),
        # Attention, after Llama.
        "Llama": _of("attention", "llama", llama),
        "Mistral": _of("attention", "mistral", llama, sliding_window=4),
        "Ministral": _of("attention", "ministral", llama, sliding_window=4),
        "Qwen2": _of("attention", "qwen2", llama, tie_word_embeddings=True),
        "Qwen3": _of("attention", "qwen3", llama),
        "Gemma": _of("attention", "gemma", llama),
        "Gemma 2": _of("attention", "gemma2", llama, sliding_window=4),
        "Gemma 3": _of("attention", "gemma3_text", llama, sliding_window=4),
        "Gemma 3n": _of(
            "attention",
            "gemma3n_text",
            llama,
            num_hidden_layers=4,
            num_kv_shared_layers=2,
            vocab_size_per_layer_input=vocabulary,
            hidden_size_per_layer_input=quarter,
            laurel_rank=quarter,
            intermediate_size=[hidden] * 4,
            activation_sparsity_pattern=[0.5, 0.0, 0.0, 0.0],
            layer_types=["sliding_attention", "full_attention"] * 2,
        ),
        "VaultGemma": _of("attention", "vaultgemma", llama, sliding_window=4),
        "OLMo": _of("attention", "olmo", llama),
        "OLMo 2": _of("attention", "olmo2", llama),
        "OLMo 3": _of("attention", "olmo3", llama, sliding_window=4),
        "Granite": _of("attention", "granite", llama),
        "Cohere": _of("attention", "cohere", llama, use_qk_norm=True),
        "Cohere 2": _of("attention", "cohere2", llama, sliding_window=4),
        "GLM-4": _of("attention", "glm4", llama),
        "Nemotron": _of("attention", "nemotron", llama),
        "EXAONE 4": _of("attention", "exaone4", llama, sliding_window=4),
        "SmolLM3": _of("attention", "smollm3", llama),
        "ERNIE 4.5": _of("attention", "ernie4_5", llama),
        "Seed-OSS": _of("attention", "seed_oss", llama),
        "Helium": _of("attention", "helium", llama),
        "Apertus": _of("attention", "apertus", llama),
        "Arcee": _of("attention", "arcee", llama),
        "HunYuan": _of("attention", "hunyuan_v1_dense", llama),
        "nanochat": _of("attention", "nanochat", llama),
        "BitNet": _of("attention", "bitnet", llama),
        "ModernBERT decoder": _of("attention", "modernbert-decoder", llama),
        "DiffLlama": _of("attention", "diffllama", llama, num_key_value_heads=2),
        # Mixtures of experts.
        "Mixtral": _of("experts", "mixtral", llama, num_local_experts=4, num_experts_per_tok=2),
        "Qwen2-MoE": _of("experts", "qwen2_moe", experts, shared_expert_intermediate_size=half),
        "Qwen3-MoE": _of("experts", "qwen3_moe", experts),
        "OLMoE": _of("experts", "olmoe", experts),
        "DeepSeek-V2": _of("experts", "deepseek_v2", latent, topk_method="greedy"),
        "DeepSeek-V3": _of("experts", "deepseek_v3", latent),
        "GLM-4-MoE": _of("experts", "glm4_moe", latent),
        "ERNIE 4.5 MoE": _of("experts", "ernie4_5_moe", experts, moe_num_experts=4, moe_k=2),
        "GPT-OSS": _of(
            "experts",
            "gpt_oss",
            llama,
            num_local_experts=4,
            num_experts_per_tok=2,
            sliding_window=4,
        ),
        "Granite-MoE": _of(
            "experts", "granitemoe", llama, num_local_experts=4, num_experts_per_tok=2
        ),
        "Phi-3.5-MoE": _of("experts", "phimoe", llama, num_local_experts=4, num_experts_per_tok=2),
        "DBRX": _of(
            "experts",
            "dbrx",
            _ENDS,
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
        "JetMoE": _of(
            "experts", "jetmoe", llama, kv_channels=half, num_local_experts=4, num_experts_per_tok=2
        ),
        "Llama 4": _of(
            "experts",
            "llama4_text",
            llama,
            intermediate_size_mlp=hidden,
            num_local_experts=4,
            num_experts_per_tok=1,
        ),
        # States in place of attention, and both.
        "Mamba": _of("state space", "mamba", mamba),
        "Mamba-2": _of("state space", "mamba2", mamba2),
        "Falcon-Mamba": _of("state space", "falcon_mamba", mamba),
        "RWKV": _of(
            "state space",
            "rwkv",
            mamba,
            attention_hidden_size=width,
            context_length=positions,
            rescale_every=0,
        ),
        "xLSTM": _of(
            "state space",
            "xlstm",
            _ENDS,
            vocab_size=vocabulary,
            hidden_size=2 * width,
            embedding_dim=2 * width,
            num_heads=2,
            num_blocks=2,
            num_hidden_layers=2,
            chunk_size=8,
        ),
        "RecurrentGemma": _of(
            "hybrid",
            "recurrent_gemma",
            llama,
            lru_width=width,
            attention_window_size=8,
            num_hidden_layers=3,
        ),
        "Jamba": _of(
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
        "Bamba": _of(
            "hybrid",
            "bamba",
            llama,
            mamba_n_heads=4,
            mamba_d_head=half,
            mamba_n_groups=1,
            mamba_d_state=4,
            mamba_chunk_size=8,
            attn_layer_indices=[1],
        ),
        "Zamba": _of(
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
        "Zamba2": _of(
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
        "Falcon-H1": _of(
            "hybrid",
            "falcon_h1",
            llama,
            mamba_d_ssm=2 * width,
            mamba_n_heads=4,
            mamba_d_head=half,
            mamba_n_groups=1,
            mamba_d_state=4,
            mamba_chunk_size=8,
        ),
        "Nemotron-H": _of(
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
        "Granite-4 (hybrid)": _of(
            "hybrid",
            "granitemoehybrid",
            llama,
            layer_types=["mamba", "attention"],
            mamba_n_heads=4,
            mamba_d_head=half,
            mamba_n_groups=1,
            mamba_d_state=4,
            mamba_chunk_size=8,
            num_local_experts=0,
            shared_intermediate_size=hidden,
        ),
        "LFM2": _of(
            "hybrid",
            "lfm2",
            llama,
            layer_types=["conv", "full_attention"],
            block_auto_adjust_ff_dim=False,
            conv_L_cache=3,
        ),
        "Qwen3-Next": _of(
            "hybrid",
            "qwen3_next",
            experts,
            layer_types=["linear_attention", "full_attention"],
            linear_num_key_heads=2,
            linear_num_value_heads=2,
            linear_key_head_dim=half,
            linear_value_head_dim=half,
            shared_expert_intermediate_size=half,
        ),
        "Qwen3.5": _of(
            "hybrid",
            "qwen3_5_text",
            llama,
            layer_types=["linear_attention", "full_attention"],
            linear_num_key_heads=2,
            linear_num_value_heads=2,
            linear_key_head_dim=half,
            linear_value_head_dim=half,
        ),
        "OLMo-Hybrid": _of(
            "hybrid",
            "olmo_hybrid",
            many_heads,
            layer_types=["linear_attention", "full_attention"],
            linear_num_key_heads=2,
            linear_num_value_heads=2,
            linear_key_head_dim=half,
            linear_value_head_dim=half,
        ),
        "MiniMax": _of(
            "hybrid",
            "minimax",
            llama,
            layer_types=["linear_attention", "full_attention"],
            num_local_experts=4,
            num_experts_per_tok=2,
            block_size=8,
        ),
    }


FAMILIES = families()


def build(family: Family, *, adapters: bool = False, seed: int = 7) -> nn.Module:
    """The model, float32, in evaluation mode, at weights that are not those of a beginning.

    Fresh models have zeros for biases and ones for norms; a wrong rule could hide behind these.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = AutoConfig.for_model(family.model_type, **family.config)
        model: nn.Module = AutoModelForCausalLM.from_config(config).float().eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.05 * torch.randn_like(parameter))
        if adapters:
            model = _with_adapters(model)
    return model


def _with_adapters(model: nn.Module) -> nn.Module:
    settings = peft.LoraConfig(
        r=2,
        target_modules=linear_layers(model),
        task_type="CAUSAL_LM",
        fan_in_fan_out=any(type(module).__name__ == "Conv1D" for module in model.modules()),
    )
    wrapped: nn.Module = peft.get_peft_model(model, settings)
    with torch.no_grad():
        for name, parameter in wrapped.named_parameters():
            if "lora_B" in name:  # they begin as zeros, and half of the gradients with them
                parameter.normal_(std=0.1)
    return wrapped.eval()
