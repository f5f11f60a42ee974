"""Tiny causal language models of every family in `transformers`, whole or with adapters.

A family is a type of configuration that ``AutoModelForCausalLM`` knows. Sizes are made small by the
names of a configuration's fields; whatever makes a family's code special (norms of queries and
keys, soft caps, windows, shared layers, experts, states) keeps its default.
"""

from __future__ import annotations

from typing import Any

import peft
import torch
from torch import nn
from transformers import CONFIG_MAPPING, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from userdp.training.lora import linear_layers

VOCABULARY, POSITIONS = 61, 64

COMPOSITE = {
    "blt", "dots3_note", "emu3", "fuyu", "gemma3", "gemma3n", "gemma4", "gemma4_assistant",
    "gemma4_unified", "gemma4_unified_assistant", "git", "got_ocr2", "llama4", "mllama",
    "moss_transcribe_diarize", "musicgen", "musicgen_melody", "phi4_multimodal", "qwen3_5",
    "qwen3_5_moe", "qwen4_exp", "reformer",
}  # fmt: skip
"""Models of several parts (images, sound, bytes), of which the text part of most is a family of its
own; and Reformer, which trains on rows of one length only."""

FAMILIES = tuple(name for name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES if name not in COMPOSITE)

_SIZES: tuple[tuple[int, str], ...] = (
    (VOCABULARY, "vocab_size vocab_size_per_layer_input unpadded_vocab_size"),
    (POSITIONS, "max_position_embeddings n_positions n_ctx max_seq_len max_target_positions "
    "max_source_positions context_length"),
    (0, "bos_token_id eos_token_id pad_token_id decoder_start_token_id"),
    (1, "num_key_value_heads encoder_layers num_encoder_layers topk_group n_shared_experts "
    "num_shared_experts first_k_dense_replace mamba_n_groups n_groups mamba_ngroups "
    "swa_num_key_value_heads"),
    (2, "num_hidden_layers n_layer n_layers num_layers decoder_layers num_decoder_layers "
    "num_attention_heads n_head n_heads num_heads attention_heads decoder_attention_heads "
    "encoder_attention_heads num_decoder_attention_heads num_encoder_attention_heads n_group "
    "num_expert_group num_experts_per_tok num_experts_per_token moe_k moe_topk linear_num_heads "
    "linear_num_key_heads linear_num_value_heads num_blocks swa_num_attention_heads"),
    (4, "num_experts num_local_experts n_routed_experts moe_num_experts state_size mamba_d_state "
    "ssm_state_size mamba_n_heads n_mamba_heads mamba_num_heads mamba_dt_rank sliding_window "
    "window_size sliding_window_size hidden_size_per_layer_input laurel_rank index_n_heads "
    "rotary_dim adapter_rank"),
    (8, "head_dim moe_intermediate_size shared_expert_intermediate_size q_lora_rank kv_lora_rank "
    "moe_shared_expert_intermediate_size shared_experts_intermediate_size qk_nope_head_dim "
    "qk_rope_head_dim v_head_dim "
    "mamba_d_head mamba_headdim mamba_head_dim mamba_chunk_size chunk_size attention_window_size "
    "linear_key_head_dim linear_value_head_dim linear_head_dim index_head_dim "
    "block_size swa_head_dim"),
    (16, "hidden_size d_model n_embd embedding_size embedding_dim lru_width "
    "word_embed_proj_dim attention_hidden_size input_embedding_size output_embedding_size "
    "attention_head_dim"),
    (24, "intermediate_size ffn_dim decoder_ffn_dim encoder_ffn_dim n_inner dim_ff dff d_inner "
    "intermediate_size_mlp shared_intermediate_size"),
    (32, "mamba_d_ssm"),
    (False, "use_mamba_kernels"),
    (True, "is_decoder"),
)  # fmt: skip

_BY_NAME = {field: size for size, fields in _SIZES for field in fields.split()}

_SPECIAL: dict[str, dict[str, Any]] = {
    "codegen": {"n_head": 4},
    "cohere_compass_text": {
        "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e4}},
        "layer_types": ["full_attention"] * 2,
    },
    "dbrx": {
        "attn_config": {"kv_n_heads": 1, "clip_qkv": 8.0, "rope_theta": 1e4},
        "ffn_config": {"ffn_hidden_size": 24, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "diffllama": {"num_key_value_heads": 2},
    "gemma3n_text": {
        "num_hidden_layers": 4,
        "num_kv_shared_layers": 2,
        "intermediate_size": [24] * 4,
        "activation_sparsity_pattern": [0.5, 0.0, 0.0, 0.0],
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    },
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "mamba2": {"num_heads": 4},
    "nemotron_h": {"layers_block_type": ["mamba", "attention", "moe"]},
    "roc_bert": {
        "shape_vocab_size": 61,
        "shape_embed_dim": 16,
        "pronunciation_vocab_size": 61,
        "pronunciation_embed_dim": 16,
    },
    "xmod": {"default_language": "en_XX", "languages": ["en_XX"]},
    "zamba": {
        "num_hidden_layers": 6,
        "layers_block_type": ["mamba", "mamba", "hybrid"] * 2,
        "num_key_value_heads": 2,
        "attention_hidden_size": 32,
        "n_mamba_heads": 2,
    },
    "zamba2": {
        "num_hidden_layers": 4,
        "layers_block_type": ["mamba", "hybrid"] * 2,
        "hybrid_layer_ids": [1, 3],
        "num_key_value_heads": 2,
        "attention_hidden_size": 32,
    },
    "zaya": {"num_experts_per_tok": 1},
}


def build(
    name: str, *, adapters: bool = False, dropout: float = 0.0, seed: int = 7, **changes: Any
) -> nn.Module:
    """A model in float32, in training mode, at weights that are not those of a beginning.

    Fresh models have zeros for biases and ones for norms; a wrong rule could hide behind these.

    Args:
        name: of `FAMILIES`.
        adapters: only LoRA of rank 2 on its linear layers trains.
        dropout: the rate of each kind of dropout that the family has.
        seed: of the weights.
        changes: of the family's configuration.
    """
    settings = CONFIG_MAPPING[name]
    fields = {*settings().to_dict(), *settings.attribute_map}
    sizes = {field: size for field, size in _BY_NAME.items() if field in fields}
    if "kv_lora_rank" in fields:  # keys and values of latent attention have as many heads
        sizes["num_key_value_heads"] = 2
    config = settings(**{**sizes, **_SPECIAL.get(name, {}), **changes})
    for field in fields:
        if field.endswith(_RATES):
            setattr(config, field, dropout)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: nn.Module = AutoModelForCausalLM.from_config(config).float()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.05 * torch.randn_like(parameter))
        if adapters:
            model = _with_adapters(model)
    return model.train()


_RATES = ("dropout", "dropout_prob", "pdrop", "dropout_rate")


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
    return wrapped
