"""Which weights of a pre-trained model learn, where all could, and which stay those of the base.

All gradients of a person share one clip norm, and the noise is as large for a weight that has
little to learn as for one that has much. Position embeddings take an eighth of the squared norm of
a gradient, and what makes queries, keys and values a quarter; both learn little from text of
another kind. Left still, they leave their share to the others and take no noise. On three public
texts the first gains at every size of noise, the second where there is much of it
(``docs/results/recipe.md``). The choice is public: it hangs on the names of modules and the plan.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from userdp.plans import Plan
from userdp.training.config import PlainPlan, Trained, TrainConfig

MUCH_NOISE = 5e-3
"""σ / M from which queries, keys and values stay still."""
_QUERIES_KEYS_VALUES = frozenset(
    "c_attn q_attn qkv_proj query_key_value Wqkv q_proj k_proj v_proj query key value".split()
)
"""As models of `transformers` name the layers that make them."""


def freeze_usual(model: nn.Module, config: TrainConfig, plan: Plan | PlainPlan) -> None:
    """Leave out of training what the configuration and the plan's noise suggest.

    Nothing of a new model, of one with adapters, and of a run without privacy.
    """
    usual = config.trained is Trained.AUTO and config.model != "new" and config.lora_rank is None
    if usual and isinstance(plan, Plan):
        freeze(model, attention=plan.sum_noise_multiplier / plan.denominator > MUCH_NOISE)


def freeze(model: nn.Module, *, attention: bool) -> None:
    """Leave embeddings of other things than tokens still and, with ``attention``, also what makes
    queries, keys and values.
    """
    known: Any = model
    tokens = known.get_input_embeddings()
    for name, module in model.named_modules():
        of_places = isinstance(module, nn.Embedding) and module is not tokens
        if of_places or (attention and name.rpartition(".")[2] in _QUERIES_KEYS_VALUES):
            module.requires_grad_(False)
