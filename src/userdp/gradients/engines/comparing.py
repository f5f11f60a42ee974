"""What sees the calls of a pass: `Following`; and `Comparing`, of every pass behind the first.

Which calls may share a pass was proved once for each shape of passes (`engines.certify`). Here each
call is compared with the one that was made then, and answered as it was answered: the rule that
stood in for it is told the places that it was told.
"""

from __future__ import annotations

import weakref
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from userdp.gradients.certificate.calls import ASKS, Calls, Seen, told
from userdp.gradients.certificate.places import Place
from userdp.gradients.certificate.rows import Rows
from userdp.gradients.engines.layer import RULES, Watcher
from userdp.gradients.engines.rules.broadcast import with_rows
from userdp.gradients.shards import sharded_parts


class NotCoveredError(Exception):
    """Parameters were used in a way that no rule covers, or rows not seen to be kept apart.

    Nothing was computed. The message says where and why.
    """


class Following(TorchFunctionMode):
    """What sees the calls of a tape's pass: it compares them, or proves what they do."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.ran(func, args, kwargs or {})

    @abstractmethod
    def ran(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        """Run one of torch's functions and return what it returns."""

    @abstractmethod
    def place_of(self, tensor: Tensor) -> Place | None:
        """Where rows lie in ``tensor``, as a rule asks; None where that is unknown."""

    @abstractmethod
    def mark(self, tensor: Tensor, place: Place) -> Tensor:
        """Note where rows lie in what a rule made."""

    @abstractmethod
    def watching(
        self, model: nn.Module, by_row: Iterable[Tensor | None]
    ) -> AbstractContextManager[Any]:
        """Within, calls are followed that a pass of ``model`` makes; ``by_row`` are (rows, ...)."""

    @abstractmethod
    def prove(self, losses: Tensor) -> bool:
        """Whether the forward pass kept its rows apart, from its tokens to its losses, (rows,)."""

    @abstractmethod
    def require_apart(self, proved: bool, missed: Sequence[str]) -> None:
        """Refuse a pass that is over, by `NotCoveredError`, unless `prove` ``proved`` it and no
        parameter was ``missed`` by all rules."""


class Comparing(Following):
    """Compares each call with that of the certified pass, and answers as that was answered.

    Args:
        tape: that watches the pass.
        known: what the certified pass did.
    """

    def __init__(self, tape: Watcher, known: Calls) -> None:
        super().__init__()
        self._tape: Watcher = weakref.proxy(tape)  # which holds this: its pass is large
        self._known = known
        self._at = self._asked = 0
        self._behind: tuple[int, int] = 0, 0
        self._strayed = False
        self._shards: Rows | None = None

    def place_of(self, tensor: Tensor) -> Place | None:
        if self._asked < len(self._known.asked):
            shape, place = self._known.asked[self._asked]
            self._asked += 1
            if shape == tensor.shape:
                return place
        raise self._other()

    def mark(self, tensor: Tensor, place: Place) -> Tensor:
        return tensor

    def _other(self) -> NotCoveredError:
        self._strayed = True  # also where the model's own code catches this
        return NotCoveredError("other calls than those of the pass that was certified")

    @contextmanager
    def watching(self, model: nn.Module, by_row: Iterable[Tensor | None]) -> Iterator[None]:
        if sharded_parts(model):
            self._shards = self._shards or Rows(self._tape.layout.rows)
        with nullcontext() if self._shards is None else self._shards.watching(model), self:
            yield

    def ran(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        if func in ASKS or (self._shards is not None and self._shards.aside):
            return func(*args, **kwargs)
        tape = self._tape
        seen = self._next(func, args, kwargs)
        if seen.ruled:
            answer = RULES[func](tape, *args, **kwargs)
            if answer is None:
                raise self._other()
            return answer
        if seen.spread:
            args = with_rows(tape, func, args, kwargs) or args
        answer = func(*args, **kwargs)
        if seen.made:
            tape.name_made(answer)
        return answer

    def _next(self, function: Any, args: Any, kwargs: Mapping[str, Any]) -> Seen:
        """The call that comes now, as it was certified.

        Raises:
            NotCoveredError: it was another one.
        """
        if self._at < len(self._known.seen):
            seen = self._known.seen[self._at]
            self._at += 1
            # Equal, where each look at an attribute (`Tensor.T`) makes a function anew.
            if seen.function == function and seen.given == told(
                self._tape.told_names, function, args, kwargs
            ):
                return seen
        raise self._other()

    def prove(self, losses: Tensor) -> bool:
        if self._shards is not None:
            self._shards.prove(losses)  # from here on FSDP2 is at work by itself
        self._behind = self._at, self._asked
        return not self._strayed

    def rewind(self) -> None:
        """Go back to where the backward pass began, which comes again."""
        self._at, self._asked = self._behind

    def require_apart(self, proved: bool, missed: Sequence[str]) -> None:
        ends = len(self._known.seen), len(self._known.asked)
        if self._strayed or missed or (self._at, self._asked) != ends:
            raise self._other()
