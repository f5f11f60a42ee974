"""Rows that are nobody's: what a model and a loss are asked on before anybody's data is read.

An answer found on a cohort's own rows is an answer about friendly shapes, and a refusal found there
would tell of somebody's data. These rows depend on the model's configuration only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from userdp.core.errors import UseError, ran_out_of_memory
from userdp.gradients.losses import Loss
from userdp.gradients.models import hook_numbers
from userdp.gradients.units import Units

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Shape:
    """Rows of each unit, and the length of each row."""

    rows: tuple[int, ...]
    lengths: tuple[int, ...]


RAGGED = (Shape((2, 1), (5, 6, 4)), Shape((1, 3), (7, 5, 9, 6)))
"""Ragged rows of two shapes, neither rising nor falling.

The first has 4 + 5 + 3 targets, which its 3 rows divide: flattened targets that were told apart by
division would go to the wrong rows. Rows, widths and the counts of targets differ in both.
"""

EQUAL = Shape((1, 2), (5, 5, 5))
"""Rows without padding, for code that takes another branch there."""


CANNOT_RUN = (RuntimeError, IndexError, KeyError, TypeError, ValueError, AssertionError)
"""What code raises on rows that it was not written for: another width, another vocabulary.

A failed allocation is one of these by kind, and says nothing of the rows (`failed`).
"""


def failed(error: Exception) -> str:
    """What is told of code that made-up rows do not fit.

    A refusal is raised all the same, and so is a failed allocation: an answer that was found for
    want of memory would be remembered as one about the code.
    """
    if isinstance(error, UseError) or ran_out_of_memory(error):
        raise error
    return f"made-up rows raise {type(error).__name__}"


_hooks: WeakKeyDictionary[nn.Module, tuple[int, ...]] = WeakKeyDictionary()
"""With which hooks the answers of a model were found."""


class Answers(Generic[T]):
    """What was learned of models and losses on made-up rows, for as long as both live.

    And as long as nobody registers or removes hooks (`forget_without_hooks`).
    """

    _all: ClassVar[list[Answers[Any]]] = []

    def __init__(self) -> None:
        # By the model, and then by the loss, which may be of a dataclass and then has no hash.
        self._known: Any = WeakKeyDictionary()
        self._all.append(self)

    @classmethod
    def forget_without_hooks(cls, model: nn.Module) -> None:
        """Forget what was found about ``model`` with other hooks than it has now.

        A hook takes part in each pass, so that an answer found without it says nothing. Asked once
        a step, where no engine's own hooks are in the model.
        """
        if model in _hooks and _hooks[model] != hook_numbers(model):
            del _hooks[model]
            for answers in cls._all:
                answers._known.pop(model, None)

    def of(self, model: nn.Module, loss: Loss) -> dict[Any, T]:
        """By whatever else the answer hangs on."""
        if model not in _hooks:
            _hooks[model] = hook_numbers(model)
        known = self._known.setdefault(model, WeakIdKeyDictionary())
        return cast(dict[Any, T], known.setdefault(loss, {}))


def circumstances(
    model: nn.Module, parameters: Mapping[str, Tensor], *, masked: bool
) -> tuple[object, ...]:
    """What each answer hangs on, beside model and loss: an answer of a CPU is none of a GPU."""
    kinds = tuple((name, p.dtype, p.device) for name, p in parameters.items())
    return masked, model.training, kinds


_LIMITS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length")


def most_tokens(model: nn.Module) -> int:
    """Of a row, by the model's configuration: longer ones are not made up."""
    config = getattr(model, "config", None)
    return min([v for k, v in _numbers(config) if k in _LIMITS and v >= 2], default=1 << 30)


def made_up(
    model: nn.Module, shape: Shape, *, masked: bool, device: torch.device | str = "cpu"
) -> Units:
    """Units of this shape; the same each time.

    Half of the tokens are random, half are tokens that code may look for: the ends of the
    vocabulary and whatever the model's configuration names. What stands beyond a row's length is
    random too, since nothing may depend on it.

    Args:
        model: its vocabulary and its most positions bound tokens and lengths.
        shape: of the units.
        masked: whether to mark which tokens count. The first of two ragged shapes marks all.
        device: of the result.
    """
    vocabulary = _vocabulary(model)
    config = getattr(model, "config", None)
    named = {v for k, v in _numbers(config) if k.endswith("_token_id") and 0 <= v < vocabulary}
    special = torch.tensor(sorted({0, 1 % vocabulary, vocabulary - 1, *named}))
    lengths = torch.tensor(shape.lengths).clamp(max=most_tokens(model))
    size = (len(lengths), int(lengths.max()))
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(vocabulary, size, generator=generator)
    looked_for = special[torch.randint(len(special), size, generator=generator)]
    ids = torch.where(torch.rand(size, generator=generator) < 0.5, looked_for, ids)
    marks = torch.rand(size, generator=generator) < 0.6
    marks[:, 1:2] = True  # the first token is never a target
    targets = torch.ones_like(marks) if shape == RAGGED[0] else marks
    return Units(
        input_ids=ids,
        lengths=lengths,
        offsets=torch.tensor([0, *shape.rows]).cumsum(0),
        targets=targets if masked else None,
    ).to(device)


def _vocabulary(model: nn.Module) -> int:
    """How many tokens the model knows; two where nothing tells.

    A table may hold more than the tokens of text, such as a beginning that nobody predicts.
    """
    embeddings = getattr(model, "get_input_embeddings", lambda: None)()
    config = getattr(model, "config", None)
    told = getattr(embeddings, "num_embeddings", None), getattr(config, "vocab_size", None)
    sizes = [size for size in told if isinstance(size, int) and size > 0]
    if isinstance(told[0], int):
        return min(sizes)
    tables = [m.num_embeddings for m in model.modules() if isinstance(m, nn.Embedding)]
    return min(tables, default=2)


def _numbers(config: object) -> Iterator[tuple[str, int]]:
    to_dict = getattr(config, "to_dict", None)
    for name, value in (to_dict() if callable(to_dict) else {}).items():
        if isinstance(value, int) and not isinstance(value, bool):
            yield name, value
