"""`Tape`: watch one forward and backward pass, and keep what each parameter's units need.

While a tape is active, every torch function that is given a trainable parameter it knows
(``linear``, ``addmm``, ``embedding``, ``layer_norm``, ``rms_norm``) runs as an autograd function
of ours: same value, same gradient for its input, but in place of the parameter's summed gradient it
hands the tape what is needed per unit. These are autograd functions and not hooks, so that
activation checkpointing recomputes them like any other. Norms that multiply by a vector in Python
(`LlamaRMSNorm` and its kin) see the vector once per row instead.

Within, models under `torch.compile` run as they are written: in compiled code our functions would
lose their part, and whole gradients with it.

What no rule covers goes on to torch as it is. The parameter then receives an ordinary gradient, and
that is how the engine learns, exactly, that it must fall back (`Tape.gradients` returns it).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import _engine_run_backward
from torch.overrides import TorchFunctionMode

from userdp.gradients.eager import eagerly
from userdp.gradients.engines import functions
from userdp.gradients.engines.forms import Form, choose_form
from userdp.gradients.engines.uses import (
    Dense,
    Ghost,
    Layout,
    Sparse,
    Use,
    form,
    sparse,
    squared_norms,
)


class Workspace:
    """Buffers for per-unit gradients that outlive a pass: fresh pages cost as much as the sums."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, int], Tensor] = {}

    def take(self, name: str, number: int, shape: Sequence[int], like: Tensor) -> Tensor:
        """A buffer of ``shape``; the same memory for the same (name, number) each time."""
        size = 1
        for length in shape:
            size *= length
        held = self._buffers.get((name, number))
        if held is None or held.numel() < size:
            held = self._buffers[name, number] = like.new_empty(size)
        return held[:size].view(*shape)


class Tape:
    """One pass over several units.

    Args:
        parameters: the trainable ones, by name.
        layout: which unit owns which row.
        workspace: where per-unit gradients are put.
        form: one form for all layers, or None to choose by cost.
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        layout: Layout,
        workspace: Workspace,
        *,
        form: Form | None = None,
    ) -> None:
        first = next(iter(parameters.values()))
        self.anchor = torch.zeros((), device=first.device, requires_grad=True)
        self.layout = layout
        self._names = {id(p): name for name, p in parameters.items()}
        self._parameters = parameters
        self._workspace = workspace
        self._form = form
        self._uses: dict[str, list[Use]] = defaultdict(list)
        self._known: dict[str, Tensor] = {}

    def name_of(self, tensor: object) -> str | None:
        """The trainable parameter's name; None for everything else."""
        return self._names.get(id(tensor))

    # What the autograd functions hand over in the backward pass.

    def linear(self, name: str, left: Tensor, right: Tensor) -> None:
        """A use of (p, q) with gradient ``left.T @ right``."""
        left, right = wide(left.detach()), wide(right.detach())
        p, q = left.shape[-1], right.shape[-1]
        form_ = self._form or choose_form(
            units=self.layout.units, positions=left.numel() // p, p=p, q=q, device=left.device.type
        )
        number = len(self._uses[name])
        if form_ is Form.GHOST:
            self._uses[name].append(Ghost(left, right, self.layout))
            return
        shape = (self.layout.units, p, q)
        out = self._workspace.take(name, number, shape, left)
        use = Dense(form(left, right, self.layout, out=out))
        if number == 0:  # while the gradients are still in the cache
            self._known[name] = use.squared_norms()
        self._uses[name].append(use)

    def vector(self, name: str, per_unit: Tensor) -> None:
        """A use with gradients (units, *shape)."""
        self._uses[name].append(Dense(wide(per_unit)))

    def embedding(self, name: str, tokens: Tensor, output_gradients: Tensor) -> None:
        """A use as a table that is looked up."""
        shape = self._parameters[name].shape
        self._uses[name].append(sparse(tokens, wide(output_gradients), shape, self.layout))

    # The pass itself.

    @contextmanager
    def watching(self, model: nn.Module) -> Iterator[None]:
        """Intercept the trainable parameters of ``model`` within."""
        patched = [
            module
            for module in model.modules()
            if _multiplies_by_vectors(module, self) and "forward" not in module.__dict__
        ]
        try:
            for module in patched:
                module.__dict__["forward"] = _per_row(module, self)
            with eagerly(), _Mode(self):
                yield
        finally:
            for module in patched:
                module.__dict__.pop("forward", None)

    def gradients(self, total: Tensor) -> dict[str, Tensor]:
        """Run the backward pass; the ordinary gradients of parameters that no rule covered."""
        # torch.autograd.grad would switch the tape off while it runs, and with it the
        # recomputation of checkpointed layers; this is what it calls.
        inputs = (self.anchor, *self._parameters.values())
        found = _engine_run_backward(
            (total,), (torch.ones_like(total),), False, False, inputs, True, accumulate_grad=False
        )
        return {
            name: gradient
            for name, gradient in zip(self._parameters, found[1:], strict=True)
            if gradient is not None
        }

    def squared_norms(self) -> Tensor:
        """Float64, (units,): over all parameters; NaN or inf for units that need other means."""
        return torch.stack(list(self.squares_by_name().values())).sum(0)

    def squares_by_name(self) -> dict[str, Tensor]:
        """The same for each trainable parameter; zeros for one that was not used."""
        nothing = torch.zeros(self.layout.units, dtype=torch.float64, device=self.anchor.device)
        found = dict.fromkeys(self._parameters, nothing)
        for name, uses in self._uses.items():
            # Uses arrive in backward order; a table's look-up belongs last.
            if len(uses) == 2 and isinstance(uses[0], Sparse):
                uses.reverse()
                self._known.pop(name, None)
            norms, self._uses[name] = squared_norms(uses, self._known.get(name))
            found[name] = norms
        return found

    def mixed(self, weights: Tensor, layout: Layout) -> Tape:
        """A tape of other units, each a weighted sum of this tape's.

        Args:
            weights: (new units, units); a NaN makes the new unit NaN, a 0 leaves the unit out.
            layout: of the new units.
        """
        other = Tape(self._parameters, layout, self._workspace, form=Form.FORMED)
        for name, uses in self._uses.items():
            parts = [use if isinstance(use, Dense) else use.dense() for use in uses]
            joint = parts[0].gradients
            for part in parts[1:]:
                joint = joint + part.gradients
            rows = []
            for unit in weights:
                here = unit.nonzero().flatten()
                mix = unit[here].to(joint.dtype) @ joint[here].flatten(1)
                rows.append(mix.view(joint.shape[1:]))
            other._uses[name].append(Dense(torch.stack(rows)))
        return other

    def add_to(self, total: Mapping[str, Tensor], factors: Mapping[str, Tensor]) -> None:
        """Add each unit's gradient times its factor; units of factor 0 are left out, NaN or not."""
        for name, uses in self._uses.items():
            for use in uses:
                use.add_to(total[name], factors[name])

    def drop(self, bad: Tensor) -> None:
        """Put zeros in place of all that the units of ``bad`` (bool, (units,)) left behind."""
        rows = bad[self.layout.unit_of_row]
        for name, uses in self._uses.items():
            kept: list[Use] = []
            for use in uses:
                if isinstance(use, Dense):
                    use.gradients[bad] = 0
                    kept.append(use)
                elif isinstance(use, Ghost):
                    left, right = use.left.clone(), use.right.clone()
                    left[rows], right[rows] = 0, 0
                    kept.append(Ghost(left, right, use.layout))
                else:
                    use.sums[bad[use.units]] = 0
                    kept.append(use)
            self._uses[name] = kept


def wide(tensor: Tensor) -> Tensor:
    """In float32 or wider."""
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()


class _Mode(TorchFunctionMode):
    """Sends the functions that have a rule to it, where a trainable parameter is involved."""

    def __init__(self, tape: Tape) -> None:
        super().__init__()
        self._tape = tape

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        rule = functions.RULES.get(func)
        if rule is not None and torch.is_grad_enabled():
            answer = rule(self._tape, *args, **(kwargs or {}))
            if answer is not None:
                return answer
        return func(*args, **(kwargs or {}))


def _multiplies_by_vectors(module: nn.Module, tape: Tape) -> bool:
    """Whether this is a norm that multiplies its input by its own vectors, in Python."""
    own = list(module.parameters(recurse=False))
    return (
        type(module).__name__.endswith("Norm")
        and not isinstance(module, nn.LayerNorm | nn.RMSNorm | nn.GroupNorm)
        and len(own) > 0
        and not list(module.children())
        and all(p.dim() == 1 for p in own)
        and any(tape.name_of(p) is not None for p in own)
    )


def _per_row(module: nn.Module, tape: Tape) -> Callable[..., Any]:
    original = module.forward

    def forward(hidden: Tensor, *args: Any, **kwargs: Any) -> Any:
        own = dict(module.named_parameters(recurse=False))
        rows = tape.layout.rows
        fits = (
            torch.is_grad_enabled()
            and hidden.dim() >= 2
            and hidden.shape[0] == rows
            and all(p.shape[0] == hidden.shape[-1] for p in own.values())
        )
        if not fits:
            return original(hidden, *args, **kwargs)
        try:
            for name, parameter in own.items():
                key = tape.name_of(parameter)
                if key is not None:
                    shape = (rows, *[1] * (hidden.dim() - 2), parameter.shape[0])
                    module.__dict__[name] = functions.PER_ROW(
                        tape.anchor, parameter.detach(), shape, tape, key
                    )
            return original(hidden, *args, **kwargs)
        finally:
            for name in own:
                module.__dict__.pop(name, None)

    return forward
