"""Models of `transformers` and adapters of `peft`, and habits of loops."""

from __future__ import annotations

from functools import partial

import peft
import torch
import transformers

from tests.training.ordinary.own_losses import entropies
from tests.training.ordinary.own_modules import MinGPT
from tests.training.ordinary.script import (
    BATCHES,
    LONGEST,
    Language,
    Script,
    models,
    next_tokens,
    row_means,
    script,
)
from tests.training.toy import tiny_gpt2

gpt2 = partial(tiny_gpt2, n_layer=2)


def llama(vocabulary):
    shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    shape |= {"max_position_embeddings": LONGEST, "intermediate_size": 32, "num_key_value_heads": 1}
    shape |= {"vocab_size": vocabulary, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape))


def resized(vocabulary):
    model = gpt2(vocabulary - 5)
    model.resize_token_embeddings(vocabulary)
    return model


def checkpointed(vocabulary):
    model = gpt2(vocabulary)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model


def adapted(base, config, **changes):
    """A model of `peft` with adapters of this kind over such a base."""
    return lambda vocabulary: peft.get_peft_model(base(vocabulary, **changes), config)


QUERIES = ["q_proj", "v_proj"]
SCALED = {"target_modules": ["k_proj", "v_proj", "down_proj"], "feedforward_modules": ["down_proj"]}
HEAD = {"target_modules": ["c_attn"], "modules_to_save": ["lm_head"]}

models(
    BATCHES,
    gpt2_from_a_configuration=gpt2,
    gpt2_without_dropout=partial(gpt2, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0),
    llama_from_a_configuration=llama,
    embeddings_resized=resized,
    gradient_checkpointing_enable=checkpointed,
    lora_on_all_linear_layers=adapted(
        llama, peft.LoraConfig(r=4, target_modules="all-linear", lora_dropout=0.05)
    ),
    lora_and_a_trained_head=adapted(gpt2, peft.LoraConfig(r=4, **HEAD), tie_word_embeddings=False),
    dora=adapted(llama, peft.LoraConfig(r=4, target_modules=QUERIES, use_dora=True)),
    ia3=adapted(llama, peft.IA3Config(**SCALED)),
)
models(
    "labels must have the shape|shape",
    prompt_tuning_with_the_built_in_loss=adapted(
        gpt2, peft.PromptTuningConfig(num_virtual_tokens=2, task_type="CAUSAL_LM")
    ),
)


@script(BATCHES)
def a_loss_on_hidden_states_too(vocabulary):
    def loss(model, input_ids, lengths):
        out = model(input_ids=input_ids, output_hidden_states=True)
        size = out.hidden_states[1].square().mean(-1)[:, :-1]
        return row_means(entropies(out.logits, input_ids) + 0.01 * size, lengths)

    return Script(model=llama(vocabulary), loss=loss)


@script(BATCHES)
def a_moving_average_of_weights(vocabulary):
    model = Language(vocabulary, MinGPT())
    follow = partial(torch.optim.swa_utils.AveragedModel(model).update_parameters, model)
    return Script(model=model, loss=next_tokens, after_step=follow)


@script("LBFGS|closure")
def lbfgs(vocabulary):
    return Script(model=gpt2(vocabulary), optimizer=lambda m: torch.optim.LBFGS(m.parameters()))
