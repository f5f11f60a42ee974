"""Questions that a model asks of its tokens only to warn of them.

GPT-2 looks, where its configuration names a padding token, whether some row begins or ends with
one, and logs an advice. Python would read everybody's tokens by that, for no number of the loss;
and what is logged would hang on them. While a tape watches, nobody asks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from userdp.gradients.engines.layer import Watcher, replaces

_ASKS = "warn_if_padding_and_no_attention_mask"


@replaces(lambda kind: hasattr(kind, _ASKS))
def _without_asking(module: nn.Module, tape: Watcher) -> Callable[..., Any]:
    original = module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        module.__dict__[_ASKS] = lambda *args, **kwargs: None
        try:
            return original(*args, **kwargs)
        finally:
            del module.__dict__[_ASKS]

    return forward
