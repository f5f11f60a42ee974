r"""A pass whose graph is gone through twice: for each unit's norm, and for the clipped sum.

The first time backwards, layers hand over their units' squared norms, a layer at a time, and no
parameter is given a gradient. Then the clip factors are known, and the same graph is gone through
once more, from the same losses: each layer gives its parameters the sum of its units' gradients,
each times its factor. Activations are kept in between, so that nothing is computed forwards twice,
and a unit's norm and gradient are of the same dropout masks because there are no others.

The factors come in where a parameter's gradient is made, not in the losses: what passes backwards
between the layers is then the same both times, also where it lies so near the end of float32's
range that a factor would push it over (a unit was added with 1.87 C).

**Norms from Gram matrices** are those that are known not to be too small (`Ghost.at_most`): where
much of a unit's positions cancels, they are larger by what rounding may have lost (`rules.grams`).

**Rows that cancel.** What the second time adds is another sum than the one whose norm was taken, of
rows that were multiplied before they were added, and both round. No gradient is formed twice:
a norm is *taken larger* by what they may differ by, as far as the clip's margin has no room for it
(`engines.rounding`): a unit most of whose positions cancel is clipped some more. That moves nobody
else, and has no threshold that rounding could cross.

Products are made in runs. Other sums over positions (rows of a table, kernels of convolutions,
vectors) may go on one position after another, however many there are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from userdp.gradients.engines.forms import Form
from userdp.gradients.engines.passes import layout_of
from userdp.gradients.engines.rounding import additions, at_least, longest_run, taken_larger
from userdp.gradients.engines.rules.linear import Ghost
from userdp.gradients.engines.tape import NOT_BY_ROWS, NotCoveredError, Tape, Workspace, mean_losses
from userdp.gradients.engines.uses import Layout, Use, joint, squared_norms, squares, wide
from userdp.gradients.losses import Loss
from userdp.gradients.modes import run_backward, unwatched
from userdp.gradients.precision import reduced_products
from userdp.gradients.units import Units

_VANISHING = 2.0**-63


class NormTape(Tape):
    """A tape that keeps squared norms and forgets the rest, layer by layer.

    Only a parameter that several modules share (tied embeddings) is kept until all have been seen.

    Args:
        parameters: the trainable ones, by name; sharded.
        layout: which unit owns which row.
        workspace: where per-unit gradients are put.
        shared: names of the parameters that several modules use.
    """

    derives = False  # a sharded layer's parameters are gone by the end of the backward pass

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        layout: Layout,
        workspace: Workspace,
        *,
        shared: frozenset[str],
    ) -> None:
        form = Form.FORMED if reduced_products() else None
        super().__init__(parameters, layout, workspace, form=form)
        self._shared = shared
        self._gathered: dict[str, nn.Parameter] = {}
        self._factors: Tensor | None = None
        self._squares: dict[str, Tensor] = {}
        self._lengths: dict[str, Tensor] = {}
        self._runs: dict[str, Tensor] = {}
        self._added: dict[str, int] = {}

    @contextmanager
    def watching(self, model: nn.Module, *by_row: Tensor | None) -> Iterator[None]:
        """As `Tape.watching`; and learn the gathered parameters of each module at its turn."""
        names = {id(p): name for name, p in self._parameters.items()}
        handles = []
        for module in model.modules():
            own = {
                key: names[id(p)]
                for key, p in module.named_parameters(recurse=False)
                if id(p) in names
            }
            if not own:
                continue

            def learn(module: nn.Module, arguments: Any, own: Mapping[str, str] = own) -> None:
                for key, name in own.items():
                    self._gathered[name] = gathered = getattr(module, key)
                    self._names[id(gathered)] = name

            handles.append(module.register_forward_pre_hook(learn))
        try:
            with super().watching(model, *by_row):
                yield
        finally:
            for handle in handles:
                handle.remove()

    def backward(self, total: Tensor) -> list[str]:
        """As `Tape.backward`; keeps the graph.

        FSDP finishes a pass by writing to ``.grad``, which is cleared.
        """
        run_backward(total, (), accumulate=True, keep_graph=True)
        uncovered = [name for name, p in self._parameters.items() if p.grad is not None]
        for parameter in self._parameters.values():
            parameter.grad = None
        return uncovered

    def add(self, total: Tensor, factors: Tensor) -> None:
        """Go through the graph once more, from ``total``; parameters get the clipped sum."""
        self._factors = factors
        run_backward(total, (), accumulate=True)

    def keep(self, name: str, use: Use, *factors: Tensor) -> None:
        """Keep a use's norms; all of it where the parameter is shared."""
        if self._factors is not None:
            parameter = self._gathered[name]
            part = use.summed(self._factors).to(parameter.dtype)
            parameter.grad = part if parameter.grad is None else parameter.grad.add_(part)
            return
        if factors:
            positions = factors[0].numel() // max(1, factors[0].shape[-1])
            if self.layout.equal:
                positions //= self.layout.units
            added = additions(positions) if len(factors) > 1 else positions
            self._added[name] = added + self._added.get(name, 0)
        if name in self._shared:
            self._note_lengths(name, factors)
            self._uses[name].append(
                use.chosen(self.form_of(name), lambda shape, x: x.new_empty(shape))
            )
            return
        if name in self._squares:
            # Its norm is not the sum of its uses' norms.
            raise NotCoveredError([f"{name} (used more than once)"])
        use = use.chosen(self.form_of(name), lambda *shape: self._workspace.take("", 0, *shape))
        if isinstance(use, Ghost):  # whose Gram matrices tell both
            self._squares[name], self._lengths[name] = use.at_most()
        else:
            self._note_lengths(name, factors)
            self._squares[name] = use.squared_norms()

    def _note_lengths(self, name: str, factors: Sequence[Tensor]) -> None:
        """Add W of a use, whose gradient is the sum of outer products of ``factors``."""
        if not factors:
            return
        lengths = _lengths(wide(factors[0]))
        for factor in factors[1:]:
            lengths = lengths * _lengths(wide(factor))
        self._lengths[name] = self.layout.summed(lengths)[:, 0] + self._lengths.get(name, 0)
        if len(factors) > 1:  # units are added up together
            self._runs[name] = self._longest_runs(lengths) + self._runs.get(name, 0)

    def _longest_runs(self, lengths: Tensor) -> Tensor:
        layout = self.layout
        if layout.equal:
            return longest_run(layout.stacked(lengths)[..., 0])
        return torch.cat([longest_run(each.T) for each in layout.split(lengths)])

    def squares_by_name(self) -> dict[str, Tensor]:
        """Float64, (units,), by parameter; NaN or inf for units that are not finite."""
        nothing = torch.zeros(self.layout.units, dtype=torch.float64, device=self.anchor.device)
        squares = dict.fromkeys(self._parameters, nothing) | self._squares
        squares |= {name: _accurate(uses) for name, uses in self._uses.items()}
        for name, lengths in self._lengths.items():
            squares[name] = taken_larger(squares[name], lengths, added=self._added[name])
        for name, run in self._runs.items():
            squares[name] = torch.maximum(squares[name], at_least(run))
        return squares


def _lengths(rows: Tensor) -> Tensor:
    """Each row's norm, or more: float64, (rows, ..., 1); inf where float32 cannot hold its square.

    Numbers whose squares vanish in float32 count as the largest of these, 2^-63, so that a tiny row
    beside a huge one does not vanish from W.
    """
    width = rows.shape[-1]
    lengths: Tensor = squares(rows.reshape(-1, width)).sqrt() + _VANISHING * width**0.5
    return lengths.view(*rows.shape[:-1], 1)


def _accurate(uses: list[Use]) -> Tensor:
    """Squared norms, or more: where a layer's cannot be told exactly, what they are at most.

    Of one use the host waits for nothing. Two uses of one table whose gradients cancel are formed.
    """
    if len(uses) == 1:
        use = uses[0]
        return use.at_most()[0] if isinstance(use, Ghost) else use.squared_norms()
    norms, _ = squared_norms(uses)
    if bool(norms.isnan().any()):
        norms = torch.where(norms.isnan(), joint(uses).squared_norms(), norms)
    return norms


@contextmanager
def norms_of(
    model: nn.Module,
    loss: Loss,
    units: Units,
    parameters: Mapping[str, nn.Parameter],
    workspace: Workspace,
) -> Iterator[Norms]:
    """Each unit's norm; within, the pass can be gone through again for a sum.

    Raises:
        NotCoveredError: a parameter is used in a way that no rule covers.
    """
    layout = layout_of(units)
    places = Counter(id(p) for _, p in model.named_parameters(remove_duplicate=False))
    shared = frozenset(name for name, p in parameters.items() if places[id(p)] > 1)
    tape = NormTape(parameters, layout, workspace, shared=shared)
    with tape.passing(model, loss, units, owners=layout) as (losses, shares):
        # What is asked here, the model did not ask.
        with torch.no_grad(), unwatched():
            norms = Norms(
                squares=tape.squared_norms(),
                losses=mean_losses(losses, shares, layout),
                _tape=tape,
                _attached=losses,
                _shares=shares,
            )
        yield norms


@dataclass(frozen=True, kw_only=True, slots=True)
class Norms:
    """What one way through the graph told.

    Attributes:
        squares: each unit's squared norm, float64 (units,); NaN or inf where it is not finite.
        losses: each unit's mean loss, float64 (units,).
    """

    squares: Tensor
    losses: Tensor
    _tape: NormTape
    _attached: Tensor
    _shares: Tensor

    def add(self, factors: Tensor) -> None:
        """Add each unit's gradient times its factor to the parameters' ``.grad``; once.

        Args:
            factors: float64, (units,). The gradient of a unit whose norm is not finite is NaN even
                times 0.
        """
        with unwatched():
            total = (self._attached * self._shares).sum()
        self._tape.add(total, factors)
        if not self._tape.kept_apart():
            raise NotCoveredError([NOT_BY_ROWS])
