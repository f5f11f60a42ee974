r"""The first of two passes: each unit's norm; gradients exist for a layer at a time at most.

**Rows that cancel.** What the second pass adds is computed by other operations than the norm, so
its rounding counts: about a float32 rounding times :math:`W = \sum_s \|l_s\| \|r_s\|`, the length
of all that is added up. Where W is up to 64 times the gradient's norm (`uses.GHOST_CONDITION`),
the margin covers that: at most 2.2e-4 of the norm on rows made to be worst, constant ones whose
roundings all go one way (`tests/gradients/test_gram_norms.py`). Beyond, one process alone would
form the gradient; here none is ever formed twice, so the norm is *taken larger*, `taken_larger`: a
unit whose positions cancel to less than 1/64 is clipped some more. That moves nobody else, and has
no threshold that rounding could cross.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import _engine_run_backward

from userdp.errors import UseError
from userdp.gradients.engines.chunks import layout_of
from userdp.gradients.engines.forms import Form, choose_form
from userdp.gradients.engines.one_pass import NOT_BY_ROWS, NotCoveredError
from userdp.gradients.engines.precision import reduced_products
from userdp.gradients.engines.tape import Tape, Workspace, wide
from userdp.gradients.engines.uses import (
    GHOST_CONDITION,
    Dense,
    Ghost,
    Layout,
    Sparse,
    Use,
    form,
    squared_norms,
)
from userdp.gradients.losses import Loss, row_losses
from userdp.gradients.units import Units

_ROUNDING = 1e-5


class NormTape(Tape):
    """A tape that keeps squared norms and forgets the rest, layer by layer.

    Only a parameter that several modules share (tied embeddings) is kept until all have been seen.

    Args:
        parameters: the trainable ones, by name; sharded.
        layout: which unit owns which row.
        workspace: where per-unit gradients are put.
        shared: names of the parameters that several modules use.
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        layout: Layout,
        workspace: Workspace,
        *,
        shared: frozenset[str],
    ) -> None:
        super().__init__(parameters, layout, workspace)
        self._shared = shared
        self._squares: dict[str, Tensor] = {}
        self._lengths: dict[str, Tensor] = {}

    def know(self, tensor: Tensor, name: str) -> None:
        """``tensor`` is parameter ``name``, gathered."""
        self._names[id(tensor)] = name

    def backward(self, total: Tensor) -> None:
        """Run the backward pass, and fill the ``.grad`` of parameters that no rule covered."""
        # Tensor.backward would switch the tape off while it runs, see `Tape.gradients`.
        _engine_run_backward(
            (total,), (torch.ones_like(total),), False, False, (), True, accumulate_grad=True
        )

    def linear(self, name: str, left: Tensor, right: Tensor) -> None:
        """A use of (p, q) with gradient ``left.T @ right``."""
        left, right = wide(left.detach()), wide(right.detach())
        self._lengthen(name, _lengths(left) * _lengths(right))
        p, q = left.shape[-1], right.shape[-1]
        positions = left.numel() // p
        form_ = choose_form(
            units=self.layout.units, positions=positions, p=p, q=q, device=left.device.type
        )
        if reduced_products():
            form_ = Form.FORMED
        if form_ is Form.GHOST:
            self._take(name, Ghost(left, right, self.layout))
            return
        shape = (self.layout.units, p, q)
        kept = name in self._shared
        out = None if kept else self._workspace.take("", 0, shape, left)
        self._take(name, Dense(form(left, right, self.layout, out=out)))

    def vector(self, name: str, per_unit: Tensor) -> None:
        """A use with gradients (units, *shape)."""
        self._take(name, Dense(wide(per_unit)))

    def embedding(self, name: str, tokens: Tensor, output_gradients: Tensor) -> None:
        """A use as a table that is looked up."""
        self._lengthen(name, _lengths(output_gradients))
        super().embedding(name, tokens, output_gradients)
        self._take(name, self._uses[name].pop())

    def _take(self, name: str, use: Use) -> None:
        if name in self._shared:
            self._uses[name].append(use)
        elif name in self._squares:
            # Its norm is not the sum of its uses' norms.
            raise NotCoveredError([f"{name} (used more than once)"])
        else:
            self._squares[name] = _accurate([use])

    def squared_norms(self) -> Tensor:
        """Float64, (units,): over all parameters; NaN or inf for units that are not finite."""
        nothing = torch.zeros(self.layout.units, dtype=torch.float64, device=self.anchor.device)
        found = dict(self._squares)
        for name, uses in self._uses.items():
            if len(uses) == 2 and isinstance(uses[0], Sparse):
                uses.reverse()
            if uses:
                found[name] = _accurate(uses)
        parts = [
            taken_larger(square, self._lengths[name]) if name in self._lengths else square
            for name, square in found.items()
        ]
        return torch.stack([nothing, *parts]).sum(0)

    def _lengthen(self, name: str, lengths: Tensor) -> None:
        """Add up W; ``lengths``: (rows, ..., 1)."""
        more = self.layout.summed(lengths)[:, 0]
        self._lengths[name] = self._lengths[name] + more if name in self._lengths else more


def taken_larger(squares: Tensor, lengths: Tensor) -> Tensor:
    r"""Squared norms, larger where the gradient is what is left of much that cancelled.

    .. math:: \big(\|G\| + \tau \max(0, W - 64 \|G\|)\big)^2, \qquad \tau = 10^{-5}

    τ is three times the largest rounding of a product that a search for the worst rows found.

    Args:
        squares: float64, (units,); NaN and inf stay.
        lengths: W; float64, (units,).
    """
    norms = squares.sqrt()
    beyond = (lengths - GHOST_CONDITION**0.5 * norms).clamp(min=0)
    return torch.where(beyond > 0, (norms + _ROUNDING * beyond).square(), squares)


def _lengths(rows: Tensor) -> Tensor:
    """Each row's norm: float64, (rows, ..., 1)."""
    lengths: Tensor = torch.linalg.vector_norm(rows, dim=-1, keepdim=True, dtype=torch.float64)
    return lengths


def _accurate(uses: list[Use]) -> Tensor:
    """`squared_norms`, with gradients formed for the units that its identities do not serve."""
    found, _ = squared_norms(list(uses))
    if len(uses) == 1 and not isinstance(uses[0], Ghost):
        return found  # of the very gradients: forming them tells nothing more, asking costs a wait
    if bool(found.isnan().any()):
        formed = [use if isinstance(use, Dense) else use.dense() for use in uses]
        joint = formed[0].gradients
        for other in formed[1:]:
            joint = joint + other.gradients
        found = torch.where(found.isnan(), Dense(joint).squared_norms(), found)
    return found


def norms_of(
    model: nn.Module,
    loss: Loss,
    units: Units,
    parameters: Mapping[str, nn.Parameter],
    workspace: Workspace,
) -> tuple[Tensor, Tensor, set[torch.dtype]]:
    """Each unit's squared norm and mean loss, float64 (units,); and narrow types that were seen.

    Raises:
        NotCoveredError: a parameter is used in a way that no rule covers.
    """
    layout, units = layout_of(units), cut(units)
    tape = NormTape(parameters, layout, workspace, shared=_shared(model, parameters))
    with (
        torch.enable_grad(),
        _introduced(model, parameters, tape),
        tape.watching(model, units.input_ids, units.lengths, units.targets),
    ):
        losses, weights = weighted_losses(model, loss, units, layout)
        proved = tape.rows.prove(losses)
        tape.backward((losses * weights).sum())
    uncovered = [name for name, p in parameters.items() if p.grad is not None]
    for parameter in parameters.values():
        parameter.grad = None
    if uncovered or not proved:
        raise NotCoveredError([*uncovered, *([] if proved else [NOT_BY_ROWS])])
    means = torch.zeros(len(units), dtype=torch.float64)
    each = losses.detach().double() * weights.double()
    means.index_add_(0, layout.unit_of_row.cpu(), each.cpu())
    with torch.no_grad():
        return tape.squared_norms(), means, tape.narrow


def cut(units: Units) -> Units:
    """The same units, no wider than their longest row."""
    width = int(units.lengths.max())
    return Units(
        input_ids=units.input_ids[:, :width],
        lengths=units.lengths,
        offsets=units.offsets,
        targets=None if units.targets is None else units.targets[:, :width],
    )


def weighted_losses(
    model: nn.Module, loss: Loss, units: Units, layout: Layout
) -> tuple[Tensor, Tensor]:
    """Each row's loss, and one over the rows of its unit; of units that are `cut`."""
    losses = row_losses(loss, model, units.input_ids, units.lengths, units.targets)
    if losses.shape != (layout.rows,):
        raise UseError(
            f"the loss must return one number per row, shape ({layout.rows},), got "
            f"{tuple(losses.shape)}"
        )
    counts = units.offsets.diff().to(units.lengths.device)[layout.unit_of_row]
    return losses, (1 / counts.double()).to(losses.dtype)


@contextmanager
def _introduced(
    model: nn.Module, parameters: Mapping[str, nn.Parameter], tape: NormTape
) -> Iterator[None]:
    """Within, the tape learns the gathered parameters of each module when it is its turn."""
    names = {id(p): name for name, p in parameters.items()}
    handles = []
    for module in model.modules():
        own = {
            key: names[id(p)] for key, p in module.named_parameters(recurse=False) if id(p) in names
        }
        if not own:
            continue

        def introduce(module: nn.Module, arguments: Any, own: Mapping[str, str] = own) -> None:
            for key, name in own.items():
                tape.know(getattr(module, key), name)

        handles.append(module.register_forward_pre_hook(introduce))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _shared(model: nn.Module, parameters: Mapping[str, nn.Parameter]) -> frozenset[str]:
    places = Counter(id(p) for _, p in model.named_parameters(remove_duplicate=False))
    return frozenset(name for name, p in parameters.items() if places[id(p)] > 1)
