r"""Many units in one backward pass, each clipped as if alone.

**What is guaranteed, and how.**

1. *Each unit's contribution has norm at most C(1 - m)*, m = `precision.margin`. Where a layer's
   per-unit gradients are formed, the norm is taken of the very numbers that are added: worst case,
   the rounding of blocks of squares (6.1e-5) and of the weighted sum over a pass. Where the norm
   comes from Gram matrices it is formed by other operations than the sum. It is never too small:
   what their rounding may have lost is added (`engines.rounding`, with the proof). The sum is a
   float32 product over S positions. With :math:`B = \sum_{st} |K_{st} H_{st}|`, of which the square
   of every partial sum is at most a part, it is off by at most :math:`(S + 2 \sqrt S) u \sqrt B`;
   the norm is larger by at least :math:`c u B / \|G\|`, c the mean of both sides' counts of
   roundings. So it is too long by at most :math:`(S + 2 \sqrt S)^2 u / (4 c)` of the norm: 4e-5 on
   a CPU and 1.3e-4 on accelerators, at all shapes up to 2^20 by 2^20 for which `uses.choose_form`
   takes Gram matrices.
2. *What other units contribute does not depend on a unit's presence, to the last bit.* Passes have
   fixed shapes (`engines.passes`), in each of which a unit's numbers in its place are a function of
   that unit and its masks (`engines.certify`, with the proof). A unit moves, beside its own
   contribution, the rounding of two passes' float32 sums: by 3.1e-4 C on rows made to be worst, in
   what is added behind it in a run (`engines.rounding`). Where memory ran out (`engines.engine`),
   others change by a relative rho, 1e-6 in float32 and up to 6e-5 on rows made to be worst: the
   margin covers M changes in one direction while :math:`M \rho \le m`, and with high probability,
   where they are independent, while :math:`M \rho^2 \le m`.
3. *Which engine computes hangs on shapes and code.* A shape without a certificate is computed unit
   by unit, and so are the units of a pass that did something else than was certified, and a unit
   whose norm float32 cannot hold; when a pass raises an error, each of its units is computed in its
   place beside copies of itself: the same bits. All are clipped at the same aim (`Task.aim`).

Sums over passes are float64, or float32 where the rounding of that is at most a tenth of m
(`userdp.gradients.engines.rounding`). So the claim is worst-case in real arithmetic, and stands in
floating point on measured roundings, with m chosen to cover them; `reference` is the engine for
those who want the worst case throughout.

Every trainable parameter is covered: one that is used in a way without a rule is found by its
ordinary gradient, when the shape is certified.

**Adapters** A (r x d) and B (p x r) are so small that all their per-unit gradients are formed:
``B_u^T A_u`` cost what the ordinary products do, and U r (d + p) numbers of memory. The frozen base
costs nothing beyond its activations' gradients.

Source: Charles et al. 2024, Algorithm 2; the forms of `userdp.gradients.engines.uses`. Hu et al.
2022 (LoRA); Chua et al. 2024, Section 5 (per-user gradients of adapters).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property, partial
from operator import attrgetter

import torch
from torch import Tensor

from userdp.gradients.certificate.state import State
from userdp.gradients.clip_factors import ClippedSum, clip_factors, multiplicable
from userdp.gradients.engines import reference
from userdp.gradients.engines.certify import Certificate, certificate
from userdp.gradients.engines.comparing import Comparing, NotCoveredError
from userdp.gradients.engines.engine import Task
from userdp.gradients.engines.passes import (
    Pass,
    PassShape,
    formed_bytes,
    most_units,
    passes_of,
    units_by_shape,
)
from userdp.gradients.engines.rounding import running_dtype
from userdp.gradients.engines.tape import Tape, Workspace
from userdp.gradients.engines.uses import Form, Forms
from userdp.gradients.losses import may_be_of_rows
from userdp.gradients.model_randomness import GeneratorStates, StatesApart
from userdp.gradients.modes import keep_freed_memory
from userdp.gradients.precision import reduced_products
from userdp.gradients.units import Units


def sum_of_passes(task: Task, form: Forms = None, *, strict: bool = True) -> ClippedSum:
    """The clipped sum of a task whose units may share passes (`choice.why_alone`).

    Args:
        task: what is to be computed.
        form: of linear layers; see `userdp.gradients.engines.uses.Forms`.
        strict: compute all units in passes, and raise where that cannot be done.

    Raises:
        NotCoveredError: ``strict``, and a shape has no certificate, or a pass strayed from it.
    """
    step = Passes(task, form, strict=strict)
    for one in step.passes:
        step.take(one)
    return step.finish()


class Passes:
    """The passes of one sum, and what they share.

    Args:
        task: what is to be computed.
        form: of linear layers.
        strict: see `sum_of_passes`.

    Attributes:
        passes: that are to be taken, each once.
    """

    kind: type[Tape] = Tape

    def __init__(self, task: Task, form: Forms, *, strict: bool = False) -> None:
        if task.item_clip_norm is not None or reduced_products():
            # Reduced products would make the Gram matrices disagree with what is added.
            form = Form.FORMED
        self._task, self._form, self._strict = task, form, strict
        self._aimed = task.but(l2_clip_norm=task.aim)
        self._states = StatesApart()
        keep_freed_memory()
        self._alone: list[int] = []
        self._known: dict[PassShape, Certificate] = {}
        shapes = units_by_shape(task.units, task.micro_batch, self._room)
        # The widest first: what a cache grows to then is what narrower passes read of it.
        for shape in sorted(self._asked_of(shapes), key=attrgetter("width"), reverse=True):
            found = certificate(task, shape, form, self.kind)
            if isinstance(found, Certificate):
                self._known[shape] = found
            elif strict:
                raise NotCoveredError(found)
        # What a first pass of a shape puts into a cache stays there, and is no change.
        self._state = State(task.model, task.loss)
        self._workspace = Workspace(self._state.tensors())
        for known in self._known.values():
            self._workspace.strangers += [tensor for tensor, _ in known.held]
        self.passes: list[Pass] = []
        for shape, numbers in shapes.items():
            if shape in self._known:
                self.passes += passes_of(numbers, shape, self._known[shape].places)
            else:
                self._alone += numbers

    def _room(self, rows: int, width: int) -> int:
        """For how many units of this shape there is memory."""
        every = self._form is Form.FORMED
        return most_units(self._task, sum(formed_bytes(self._task, rows, width, every=every)))

    def _asked_of(self, shapes: Iterable[PassShape]) -> Iterable[PassShape]:
        """Of which shapes there may be passes that units share."""
        return [shape for shape in shapes if shape.units > 1]

    @cached_property
    def _total(self) -> ClippedSum:
        """The sum: made when the first pass has run, so that no device waits for it."""
        return self._task.zero(running_dtype(self._task, [len(p.numbers) for p in self.passes]))

    def take(
        self, one: Pass, begin: GeneratorStates | None = None, *, beside_nobody: bool = False
    ) -> None:
        """Add the units of a pass.

        Args:
            one: the pass.
            begin: the generators' states from which it begins; those that come next by default.
            beside_nobody: it is one unit beside copies of itself, because something went wrong when
                it had company.
        """
        task, known = self._task, self._known[one.shape]
        if begin is not None:
            begin.load()
        elif known.calls.drew:
            self._states.load_next()
            begin = GeneratorStates.read()
        try:
            ran = self._run(self._rows_of(one), one.shape)
        except Exception as error:  # whatever the model's and the loss's code raise
            if self._strict or not may_be_of_rows(error):
                raise
            self._state.put_back()
            if beside_nobody:
                reference.count_failed(task, self._total, one.numbers[0], error)
            else:
                for number in one.numbers:
                    self._take_apart(number, one, begin)
            return
        if ran is None:  # it did something else than was certified
            if self._strict:
                raise NotCoveredError(
                    "a pass made other calls than on made-up rows, or left a mark"
                )
            self._alone += one.numbers
            return
        tape, losses = ran
        squares_by_name = tape.squares_by_name()
        factors = task.rule.factors(
            squares_by_name, task.sizes, l2_clip_norm=self._aimed.l2_clip_norm
        )
        squares = torch.stack(list(squares_by_name.values())).sum(0)
        # Not one whose norm is not finite, or which is too far over the clip norm.
        usable = squares.isfinite() & multiplicable(factors.values())
        numbers, places, total = list(one.numbers), list(one.places), self._total
        if not task.ahead and not bool(usable.all()):
            tape.drop(~usable)
        if len(places) < len(usable):
            counted = torch.zeros(len(usable), dtype=torch.bool)
            counted[places] = True
            counted = counted.to(usable.device)
            factors = {name: each * counted for name, each in factors.items()}
        tape.add_to(total.value, factors)
        losses, squares = losses[places], squares[places]
        if task.ahead:  # the host does not wait: one that cannot be added makes the sum worthless
            total.settle_later(numbers, losses, squares, usable)
            return
        total.losses[numbers], total.norms[numbers] = losses.cpu(), squares.sqrt().cpu()
        del ran, tape, factors  # what layers kept would lie beside the next pass's activations
        for at in (~usable[places]).nonzero().flatten().tolist():
            self._take_again(numbers[at], one, begin, beside_nobody=beside_nobody)

    def _rows_of(self, one: Pass) -> Units:
        return one.of(self._task.units)

    def _run(self, part: Units, shape: PassShape) -> tuple[Tape, Tensor] | None:
        """A pass over ``part`` and each unit's loss; None where it strayed from its certificate."""
        task, known = self._task, self._known[shape]
        follow = partial(Comparing, known=known.calls)
        tape = self.kind(task, shape, self._workspace, follow, form=self._form)
        try:
            losses = tape.run(part)
        except NotCoveredError:
            losses = None
        if losses is None or self._state.changed() or not known.unwritten:
            self._state.put_back()
            return None
        if task.item_clip_norm is not None:
            self._clip_rows(tape, shape.rows, task.item_clip_norm)
        return tape, losses

    @staticmethod
    def _clip_rows(tape: Tape, rows: int, item_clip_norm: float) -> None:
        """Replace the rows' gradients by each unit's mean of clipped ones."""
        squares = torch.stack(list(tape.squares_by_name().values())).sum(0)
        factors = clip_factors(squares.cpu(), l2_clip_norm=item_clip_norm).to(squares.device)
        usable = squares.isfinite() & multiplicable([factors])
        tape.mix(torch.where(usable, factors, torch.nan) / rows, rows)

    def _take_apart(self, number: int, one: Pass, begin: GeneratorStates | None) -> None:
        """Add a unit of a pass in its place, beside copies of itself: nobody else reaches it.

        Where the pass raised an error; and where its gradient was not finite beside others: a
        kernel that fills up a tile with what lies behind it, times 0, makes a NaN of an infinity.
        """
        place = one.places[one.numbers.index(number)]
        self.take(Pass((number,), (place,), one.shape), begin, beside_nobody=True)

    def _take_again(
        self, number: int, one: Pass, begin: GeneratorStates | None, *, beside_nobody: bool
    ) -> None:
        """Add a unit of a pass that could not be added as it was."""
        if beside_nobody:
            self._alone.append(number)
        else:
            self._take_apart(number, one, begin)

    def finish(self) -> ClippedSum:
        """The sum, with the units that are computed alone."""
        total = self._total
        del self._workspace  # before the sum takes more memory
        total.widen()
        reference.add_units(self._aimed, total, self._alone, self._state, self._states)
        return total
