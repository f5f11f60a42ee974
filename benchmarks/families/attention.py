"""Families whose layers are attention."""

from __future__ import annotations

from benchmarks.families.sizes import ENDS, Family, Sizes, of


def attention_families(sizes: Sizes) -> dict[str, Family]:
    """The families by name, the oldest code first."""
    width = sizes.width
    quarter = sizes.quarter
    hidden = sizes.hidden
    vocabulary = sizes.vocabulary
    positions = sizes.positions
    llama = sizes.llama
    many_heads = sizes.many_heads
    gpt2 = sizes.gpt2
    return {
        # Attention, written before Llama.
        "GPT-2": of("attention", "gpt2", gpt2),
        "GPT-BigCode (StarCoder)": of("attention", "gpt_bigcode", gpt2),
        "GPT-Neo": of(
            "attention",
            "gpt_neo",
            llama,
            num_layers=2,
            num_heads=2,
            attention_types=[[["global", "local"], 1]],
            window_size=4,
        ),
        "GPT-J": of("attention", "gptj", gpt2, rotary_dim=quarter),
        "CodeGen": of("attention", "codegen", gpt2, rotary_dim=quarter, n_head=4),
        "GPT-NeoX (Pythia)": of("attention", "gpt_neox", llama),
        "OPT": of("attention", "opt", llama, ffn_dim=hidden, word_embed_proj_dim=width),
        "BLOOM": of(
            "attention",
            "bloom",
            ENDS,
            vocab_size=vocabulary,
            hidden_size=width,
            n_layer=2,
            n_head=2,
        ),
        "Falcon": of(
            "attention",
            "falcon",
            ENDS,
            vocab_size=vocabulary,
            hidden_size=width,
            num_hidden_layers=2,
            num_attention_heads=2,
        ),
        "Falcon (ALiBi)": of(
            "attention",
            "falcon",
            ENDS,
            vocab_size=vocabulary,
            hidden_size=width,
            num_hidden_layers=2,
            num_attention_heads=2,
            alibi=True,
            multi_query=False,
            parallel_attn=False,
            bias=True,
        ),
        "MPT": of(
            "attention",
            "mpt",
            ENDS,
            vocab_size=vocabulary,
            d_model=width,
            n_layers=2,
            n_heads=2,
            max_seq_len=positions,
            expansion_ratio=2,
        ),
        "Phi": of("attention", "phi", llama),
        "Phi-3": of("attention", "phi3", llama),
        "StableLM": of("attention", "stablelm", llama),
        "StarCoder2": of("attention", "starcoder2", llama),
        "Persimmon": of("attention", "persimmon", many_heads),
        "XGLM": of(
            "attention",
            "xglm",
            ENDS,
            vocab_size=vocabulary,
            d_model=width,
            num_layers=2,
            attention_heads=2,
            ffn_dim=hidden,
            max_position_embeddings=positions,
        ),
        "BioGPT": of("attention", "biogpt", llama),
        # Attention, after Llama.
        "Llama": of("attention", "llama", llama),
        "Mistral": of("attention", "mistral", llama, sliding_window=4),
        "Ministral": of("attention", "ministral", llama, sliding_window=4),
        "Qwen2": of("attention", "qwen2", llama, tie_word_embeddings=True),
        "Qwen3": of("attention", "qwen3", llama),
        "Gemma": of("attention", "gemma", llama),
        "Gemma 2": of("attention", "gemma2", llama, sliding_window=4),
        "Gemma 3": of("attention", "gemma3_text", llama, sliding_window=4),
        "Gemma 3n": of(
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
        "VaultGemma": of("attention", "vaultgemma", llama, sliding_window=4),
        "OLMo": of("attention", "olmo", llama),
        "OLMo 2": of("attention", "olmo2", llama),
        "OLMo 3": of("attention", "olmo3", llama, sliding_window=4),
        "Granite": of("attention", "granite", llama),
        "Cohere": of("attention", "cohere", llama, use_qk_norm=True),
        "Cohere 2": of("attention", "cohere2", llama, sliding_window=4),
        "GLM-4": of("attention", "glm4", llama),
        "Nemotron": of("attention", "nemotron", llama),
        "EXAONE 4": of("attention", "exaone4", llama, sliding_window=4),
        "SmolLM3": of("attention", "smollm3", llama),
        "ERNIE 4.5": of("attention", "ernie4_5", llama),
        "Seed-OSS": of("attention", "seed_oss", llama),
        "Helium": of("attention", "helium", llama),
        "Apertus": of("attention", "apertus", llama),
        "Arcee": of("attention", "arcee", llama),
        "HunYuan": of("attention", "hunyuan_v1_dense", llama),
        "nanochat": of("attention", "nanochat", llama),
        "BitNet": of("attention", "bitnet", llama),
        "ModernBERT decoder": of("attention", "modernbert-decoder", llama),
        "DiffLlama": of("attention", "diffllama", llama, num_key_value_heads=2),
    }
