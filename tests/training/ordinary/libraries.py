"""Models of `transformers` and adapters of `peft`, and habits of loops."""

from __future__ import annotations

from typing import Any

import peft
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

from tests.training.ordinary.own_modules import MinGPT
from tests.training.ordinary.script import (
    BATCHES,
    LONGEST,
    Language,
    Script,
    next_tokens,
    row_means,
    script,
)
from userdp.gradients import causal_lm_loss


def gpt2(vocabulary: int, **changes: Any) -> nn.Module:
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=vocabulary, n_positions=LONGEST, n_embd=16, n_layer=2, n_head=2,
            bos_token_id=0, eos_token_id=0, **changes,
        )
    )  # fmt: skip


def llama(vocabulary: int) -> nn.Module:
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=vocabulary, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
            num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=LONGEST,
            bos_token_id=0, eos_token_id=0, pad_token_id=0,
        )
    )  # fmt: skip


@script(BATCHES)
def gpt2_from_a_configuration(vocabulary: int) -> Script:
    return Script(model=gpt2(vocabulary))


@script(BATCHES)
def gpt2_without_dropout(vocabulary: int) -> Script:
    return Script(model=gpt2(vocabulary, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))


@script(BATCHES)
def llama_from_a_configuration(vocabulary: int) -> Script:
    return Script(model=llama(vocabulary))


@script(BATCHES)
def opt_from_a_configuration(vocabulary: int) -> Script:
    shape = transformers.OPTConfig(
        vocab_size=vocabulary, hidden_size=16, num_hidden_layers=2, ffn_dim=32,
        num_attention_heads=2, max_position_embeddings=LONGEST, word_embed_proj_dim=16,
    )  # fmt: skip
    return Script(model=transformers.OPTForCausalLM(shape))


@script(BATCHES)
def gpt_neox_from_a_configuration(vocabulary: int) -> Script:
    shape = transformers.GPTNeoXConfig(
        vocab_size=vocabulary, hidden_size=16, num_hidden_layers=2, intermediate_size=32,
        num_attention_heads=2, max_position_embeddings=LONGEST,
    )  # fmt: skip
    return Script(model=transformers.GPTNeoXForCausalLM(shape))


@script(BATCHES)
def embeddings_resized(vocabulary: int) -> Script:
    model: Any = gpt2(vocabulary - 5)
    model.resize_token_embeddings(vocabulary)
    return Script(model=model)


@script(BATCHES)
def gradient_checkpointing_enable(vocabulary: int) -> Script:
    model: Any = gpt2(vocabulary)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return Script(model=model)


@script(BATCHES)
def a_loss_on_hidden_states_too(vocabulary: int) -> Script:
    def loss(model: nn.Module, input_ids: Tensor, lengths: Tensor) -> Tensor:
        out = model(input_ids=input_ids, output_hidden_states=True)
        losses = F.cross_entropy(
            out.logits[:, :-1].transpose(1, 2), input_ids[:, 1:], reduction="none"
        )
        size = out.hidden_states[1].square().mean(-1)[:, :-1]
        return row_means(losses + 0.01 * size, lengths)

    return Script(model=llama(vocabulary), loss=loss)


def adapted(model: nn.Module, config: peft.PeftConfig) -> nn.Module:
    found: nn.Module = peft.get_peft_model(model, config)  # type: ignore[arg-type]
    return found


@script(BATCHES)
def lora_on_all_linear_layers(vocabulary: int) -> Script:
    config = peft.LoraConfig(r=4, target_modules="all-linear", lora_dropout=0.05)
    return Script(model=adapted(llama(vocabulary), config))


@script(BATCHES)
def lora_and_a_trained_head(vocabulary: int) -> Script:
    config = peft.LoraConfig(r=4, target_modules=["c_attn"], modules_to_save=["lm_head"])
    return Script(model=adapted(gpt2(vocabulary, tie_word_embeddings=False), config))


@script(BATCHES)
def dora(vocabulary: int) -> Script:
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], use_dora=True)
    return Script(model=adapted(llama(vocabulary), config))


@script(BATCHES)
def ia3(vocabulary: int) -> Script:
    config = peft.IA3Config(
        target_modules=["k_proj", "v_proj", "down_proj"], feedforward_modules=["down_proj"]
    )
    return Script(model=adapted(llama(vocabulary), config))


@script("labels must have the shape|shape")
def prompt_tuning_with_the_built_in_loss(vocabulary: int) -> Script:
    config = peft.PromptTuningConfig(num_virtual_tokens=2, task_type="CAUSAL_LM")
    return Script(model=adapted(gpt2(vocabulary), config))


@script(BATCHES)
def a_schedule(vocabulary: int) -> Script:
    made: list[torch.optim.Optimizer] = []

    def optimizer(model: nn.Module) -> torch.optim.Optimizer:
        made.append(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
        return made[0]

    def follow() -> None:
        torch.optim.lr_scheduler.LambdaLR(made[0], lambda step: 0.9**step).step()

    return Script(model=gpt2(vocabulary), optimizer=optimizer, after_step=follow)


@script(BATCHES)
def a_moving_average_of_weights(vocabulary: int) -> Script:
    model = Language(vocabulary, MinGPT())
    average = torch.optim.swa_utils.AveragedModel(model)
    return Script(
        model=model, loss=next_tokens, after_step=lambda: average.update_parameters(model)
    )


@script("LBFGS|closure")
def lbfgs(vocabulary: int) -> Script:
    return Script(
        model=Language(vocabulary, MinGPT()),
        loss=next_tokens,
        optimizer=lambda model: torch.optim.LBFGS(model.parameters()),
    )


@script(BATCHES)
def groups_of_parameters(vocabulary: int) -> Script:
    def optimizer(model: nn.Module) -> torch.optim.Optimizer:
        vectors = [p for p in model.parameters() if p.dim() < 2]
        tables = [p for p in model.parameters() if p.dim() >= 2]
        return torch.optim.AdamW(
            [{"params": vectors, "weight_decay": 0.0}, {"params": tables}], lr=1e-3
        )

    return Script(model=gpt2(vocabulary), loss=causal_lm_loss, optimizer=optimizer)
