r"""Whether a unit's bits are its own: the same in every place of a pass, whoever has the others.

In a pass of fixed shape (`engines.passes`) every kernel is handed tensors of fixed shapes, so that
it runs the same operations in the same order, whatever the numbers are. The proof of a pass
(`engines.rows`) says that none of a row's numbers is a function of another row's. So a unit's
numbers in its place are its own; what is left is whether another place gives the same ones, since a
unit's place is for the cohort to say. A product that is cut into tiles may add up differently at
its edge.

That is asked of the machine, on made-up rows, for each shape of a pass: units are computed once,
and once more, each in the place behind, beside others. The squared norms of all their parameters'
gradients must be the same to the last bit. It is a check and no proof; kernels that add in an order
of their own each time (atomic additions) fail it. The rows are nobody's: neither is the answer.
"""

from __future__ import annotations

import torch
from torch import Tensor

from userdp.gradients.coupling import evaluating
from userdp.gradients.engines.engine import Task
from userdp.gradients.engines.forms import Forms
from userdp.gradients.engines.passes import Pass, PassShape, layout_of
from userdp.gradients.engines.tape import NotCoveredError, Tape, Workspace
from userdp.gradients.made_up import Answers, Shape, large, made_up
from userdp.gradients.models import trainable_parameters
from userdp.gradients.row_errors import may_be_of_rows
from userdp.gradients.units import Units
from userdp.out_of_memory import ran_out_of_memory

_known: Answers[bool] = Answers()


def bits_are_own(task: Task, shape: PassShape, form: Forms) -> bool:
    """Whether made-up units have the same bits in each place of a pass of ``shape``.

    Asked once for each model, loss and shape.

    Args:
        task: whose model and loss are asked; none of its rows is read.
        shape: of the pass.
        form: of linear layers.
    """
    if shape.units == 1:
        return True
    parameters = tuple((name, p.dtype) for name, p in trainable_parameters(task.model).items())
    key = (shape, str(form), task.masked, parameters)
    known = _known.of(task.model, task.loss)
    if key not in known:
        with evaluating(task.model):
            known[key] = _asked(task, shape, form)
    return known[key]


def _asked(task: Task, shape: PassShape, form: Forms) -> bool:
    units = _made_up(task, shape)
    first = tuple(range(shape.units))
    orders = first, (shape.units, *first[:-1])
    try:
        here, there = (_squares(task, Pass(order, shape).of(units), form) for order in orders)
    except Exception as error:  # whatever the model's and the loss's code raise, on nobody's rows
        if ran_out_of_memory(error) or not (
            isinstance(error, NotCoveredError) or may_be_of_rows(error)
        ):
            raise
        return False
    moved = 1 if task.item_clip_norm is None else shape.rows
    return bool(torch.equal(here[:, :-moved], there[:, moved:]))


def _made_up(task: Task, shape: PassShape) -> Units:
    """One unit more than the pass has places, of rows as long as fit, and of shorter ones."""
    rows = (shape.units + 1) * shape.rows
    lengths = (min(length, shape.width) for length in large(rows, shape.width).lengths[:rows])
    wanted = Shape((shape.rows,) * (shape.units + 1), tuple(lengths))
    return made_up(task.model, wanted, masked=task.masked, device=task.units.lengths.device)


def _squares(task: Task, units: Units, form: Forms) -> Tensor:
    """Of each unit, or of each row if rows are clipped: float64, (parameters, units)."""
    owners = layout_of(units)
    layout = owners if task.item_clip_norm is None else layout_of(units, by_row=True)
    tape = Tape(task.parameters, layout, Workspace(), form=form)
    tape.run(task.model, task.loss, units, owners=owners)
    with torch.no_grad():
        return torch.stack(list(tape.squares_by_name().values()))
