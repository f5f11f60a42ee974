"""`Tape`: watch one forward and backward pass, and keep what each parameter's units need.

While a tape is active, every torch function that is given a trainable parameter it knows, and that
has a rule (`userdp.gradients.engines.rules`), runs as that rule: same value, same gradient for its
input, but in place of the parameter's summed gradient it hands the tape what is needed per unit.
Every other function runs as it is: the parameter then receives an ordinary gradient, and that is
how the engine learns, exactly, that it must fall back (`Tape.backward` names it).

**Which calls may do so** was proved once for each shape of passes (`engines.certify`); each later
call is compared with the one that was made then (`engines.comparing`).

Within, models under `torch.compile` run as they are written: in compiled code our functions would
lose their part, and whole gradients with it.

**Made of parameters.** What a model makes of parameters and constants alone (`1 + w`, a transpose,
``-exp(A_log)``) has a gradient by units as a parameter has, wherever a rule takes it: it is given a
name, and its per-unit gradients are carried back to its parameters through the ordinary graph that
torch kept, all units at once, when the backward pass is done (`_carry_back`). The chain rule is
linear, so a unit's part of a parameter is what that graph makes of the unit's part.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from userdp.gradients.certificate.places import Place
from userdp.gradients.engines import rules as rules  # registers them
from userdp.gradients.engines.comparing import Following
from userdp.gradients.engines.engine import Task
from userdp.gradients.engines.layer import patches
from userdp.gradients.engines.passes import PassShape
from userdp.gradients.engines.uses import (
    Dense,
    Form,
    Forms,
    Layout,
    Use,
    joint,
    squared_norms,
    wide,
)
from userdp.gradients.losses import checked_losses
from userdp.gradients.modes import (
    deterministic,
    eagerly,
    run_backward,
    run_batched_backward,
    unwatched,
)
from userdp.gradients.units import Units

KEPT_BYTES = 256 << 20
"""Most that buffers which outlive a pass may take, all of them together."""


class Workspace:
    """What the passes of one sum share: constants, and buffers for per-unit gradients.

    Buffers outlive a pass where they are small: fresh pages cost half of what the products cost
    that fill them, a tenth of a pass (GPT-2 of 4 layers of 256, G = 1). A large model computes long
    enough not to notice, and what its buffers hold would lie beside the next pass's activations.

    Args:
        held: tensors of model and loss, which are constants.

    Attributes:
        strangers: further constants, which passes must be given by identity (`Rows.strangers`).
    """

    def __init__(self, held: Iterable[Tensor] = ()) -> None:
        self.held = list(held)
        self.strangers: list[Tensor] = []
        self._buffers: dict[tuple[str, int], Tensor] = {}

    def take(self, key: tuple[str, int], shape: Sequence[int], like: Tensor) -> Tensor:
        """A buffer of ``shape``: the same memory for the same (name, number of use), if kept."""
        size, held = math.prod(shape), self._buffers.get(key)
        if held is None or held.numel() < size:
            held = like.new_empty(size)
            others = sum(one.nbytes for at, one in self._buffers.items() if at != key)
            if others + held.nbytes <= KEPT_BYTES:
                self._buffers[key] = held
        return held[:size].view(*shape)


class Tape:
    """One pass over several units.

    Args:
        task: whose parameters are watched.
        shape: of the pass.
        workspace: what the passes of the sum share.
        follow: makes what follows the calls of this tape.
        form: of linear layers; see `userdp.gradients.engines.uses.Forms`.

    Attributes:
        anchor, layout: see `userdp.gradients.engines.layer.Watcher`. Where rows are clipped too,
            each of them is a unit at first.
        calls: what follows the calls.
    """

    derives: ClassVar[bool] = True
    """Whether what is made of parameters has a name."""

    def __init__(
        self,
        task: Task,
        shape: PassShape,
        workspace: Workspace,
        follow: Callable[[Tape], Following],
        *,
        form: Forms = None,
    ) -> None:
        device = next(iter(task.parameters.values())).device
        self.anchor = torch.zeros((), device=device, requires_grad=True)
        self._rows_of_unit = shape.rows if task.item_clip_norm is None else 1
        rows = shape.units * shape.rows
        self.layout = Layout(rows // self._rows_of_unit, rows)
        self.workspace = workspace
        self.names = {id(p): name for name, p in task.parameters.items()}
        self.told_names = self.names | {id(t): f"(at {id(t)})" for t in workspace.strangers}
        self.calls = follow(self)
        self._task = task
        self._parameters = task.parameters
        self._form = form
        self._uses: dict[str, list[Use]] = defaultdict(list)
        self._known: dict[str, Tensor] = {}
        self._made: dict[int, _Made] = {}

    def name_of(self, tensor: object) -> str | None:
        """The name of a trainable parameter, or of what was made of some; None for all else."""
        made = self._made.get(id(tensor))
        if made is not None:
            return made.name if made.tensor._version == made.version else None
        return self.names.get(id(tensor))

    def place_of(self, tensor: Tensor) -> Place | None:
        """See `Following`."""
        return self.calls.place_of(tensor)

    def mark(self, tensor: Tensor, place: Place) -> Tensor:
        """See `Following`."""
        return self.calls.mark(tensor, place)

    def name_made(self, result: object) -> bool:
        """Name what parameters and constants alone made, and what passes gradients on to them."""
        if isinstance(result, tuple | list):
            named = [self.name_made(part) for part in result]
            return any(named)
        if not isinstance(result, Tensor) or not result.requires_grad:
            return False  # constants need a gradient only for the sake of parameters
        if id(result) in self.names or id(result) in self._made:
            return False
        self._made[id(result)] = _Made(f"(made {len(self._made)})", result, result._version)
        return True

    def keep(self, name: str, use: Use) -> None:
        """Keep a use that a rule hands over in the backward pass; see `Watcher.keep`."""
        uses = self._uses[name]
        use = use.chosen(self.form_of(name), partial(self.workspace.take, (name, len(uses))))
        # While formed gradients are still in the cache: 3% of a pass (GPT-2 of width 256, G = 1).
        if not uses and isinstance(use, Dense):
            self._known[name] = use.squared_norms()
        uses.append(use)

    def form_of(self, name: str) -> Form | None:
        """The form of a linear layer's parameter; None chooses by cost."""
        return self._form.get(name) if isinstance(self._form, Mapping) else self._form

    @contextmanager
    def watching(self, *by_row: Tensor | None) -> Iterator[None]:
        """Intercept the trainable parameters within; ``by_row`` are (rows, ...)."""
        model = self._task.model
        patched = patches(model, self)
        try:
            for module, forward in patched.items():
                module.__dict__["forward"] = forward
            with eagerly(), deterministic(self.anchor.device), self.calls.watching(model, by_row):
                yield
        finally:
            for module in patched:
                module.__dict__.pop("forward", None)

    def run(self, units: Units) -> Tensor:
        """A forward and a backward pass over ``units``.

        Returns:
            Each unit's mean loss, float64 (units,).

        Raises:
            NotCoveredError: a parameter is used in a way that no rule covers, or it was not seen
                that rows were kept apart.
        """
        rows = units.all_rows()
        with torch.enable_grad(), self.watching(*rows):
            losses = checked_losses(self._task.loss, self._task.model, *rows)
            proved = self.calls.prove(losses)
            with unwatched():
                total = losses.sum() / self._rows_of_unit
            missed = self.backward(total)
            self.calls.require_apart(proved, missed)
        return losses.detach().double().view(len(units), -1).mean(1)

    def backward(self, total: Tensor) -> list[str]:
        """Run the backward pass; the names of parameters that no rule covered."""
        gradients = run_backward(total, (self.anchor, *self._parameters.values()))[1:]
        missed = [n for n, g in zip(self._parameters, gradients, strict=True) if g is not None]
        return missed or self._carry_back()

    def _carry_back(self) -> list[str]:
        """Turn per-unit gradients of what was made of parameters into those of the parameters.

        Returns:
            The names of what was written to after it was used: its graph is another one by now.
        """
        made = [one for one in self._made.values() if one.name in self._uses]
        written = [one.name for one in made if one.tensor._version != one.version]
        if written or not made:
            return written
        with unwatched():  # the model is not running
            units = [joint(self._uses.pop(one.name)).gradients.to(one.tensor.dtype) for one in made]
        for one in made:
            self._known.pop(one.name, None)
        parts = run_batched_backward([one.tensor for one in made], units, self._parameters.values())
        with unwatched():
            for name, part in zip(self._parameters, parts, strict=True):
                if part is not None:
                    self.keep(name, Dense(wide(part.detach())))
        return []

    def squares_by_name(self) -> dict[str, Tensor]:
        """Squared norms by trainable parameter, float64 (units,); zeros for one that was not used.

        NaN or inf for units that need other means.
        """
        nothing = torch.zeros(self.layout.units, dtype=torch.float64, device=self.anchor.device)
        squares = dict.fromkeys(self._parameters, nothing)
        for name, uses in self._uses.items():
            squares[name], self._uses[name] = squared_norms(uses, self._known.pop(name, None))
        return squares

    def mix(self, factors: Tensor, rows: int) -> None:
        """Put in place of each ``rows`` units the sum of them, each times its factor.

        A unit of factor NaN makes the sum NaN.
        """
        units = self.layout.units // rows
        self.layout = Layout(units, self.layout.rows)
        for name, uses in self._uses.items():
            gradients = joint(uses).gradients
            weights = factors.to(gradients.dtype).view(units, 1, rows)
            mixed = torch.bmm(weights, gradients.reshape(units, rows, -1))
            self._uses[name] = [Dense(mixed.view(units, *gradients.shape[1:]))]

    def add_to(self, total: Mapping[str, Tensor], factors: Mapping[str, Tensor]) -> None:
        """Add each unit's gradient times its factor.

        What was kept of a parameter is let go once it has been added: the sum may take its memory.
        """
        while self._uses:
            name, uses = self._uses.popitem()
            for use in uses:
                use.add_to(total[name], factors[name])

    def drop(self, bad: Tensor) -> None:
        """Put zeros in place of all that the units of ``bad`` (bool, (units,)) left behind."""
        for name, uses in self._uses.items():
            self._uses[name] = [use.without(bad) for use in uses]


class _Made(NamedTuple):
    """What was made of parameters and constants, for as long as nothing was written to it."""

    name: str
    tensor: Tensor
    version: int
