r"""An error that a model or a loss raises on one unit's rows does not stop the step.

A step that stops is seen: by who catches the error and goes on, by who counts the updates. It would
tell that somebody was drawn whose rows raise, which no noise covers. So the attempt is thrown away,
and the cohort is computed once more unit by unit: in passes of the same shapes, beside nobody, so
that all others contribute the same bits (`engines.one_pass.sum_apart`), or, where the model draws
masks, by the reference engine at the same aim. There a unit whose rows raise has the gradient of no
rows, exactly zero, and is counted (`ClippedSum.failed`).

**Why that is private.** Let each unit u draw masks of its own and then either contribute at most C
or, if its rows raise under them, zero. Whether it does is a matter of its rows and its masks alone;
so leaving one unit out moves the sum by at most C, at equal masks of all others, which is the
mechanism that is accounted for. What is computed here has that law:

* *Nothing is drawn* (`Draws.NONE`). The second attempt does exactly that. Where the first one
  served, nobody's rows raise in it, and all contributions are those of the second.
* *Masks are drawn.* An attempt that served has the law of all outcomes under the condition that
  nobody raised. If it did not serve, the outcome must have the law under the condition that
  somebody did: with the first outcome of either kind, whoever raises under some masks only would
  have been given a second chance because another one raised. So attempts are made, each with masks
  that nothing before depends on (`model_randomness.draw_anew`), until somebody raises in one.
  Masks of the first attempt are not used again: that it ended tells of them.

If nobody raises in `_MOST_ATTEMPTS` of these, masks of rare kinds seem to decide, and neither
outcome has the right law: the step stops, as it does where `engines.replay` runs out of memory.

What an attempt that ended has left in the model or the loss would reach the others: it is refused
(`engines.choice`). Errors on made-up rows are nobody's doing: a model or a loss that raises on
those too is broken, or was written for other rows, and its error is let out as it is.

Sharded models compute in step, in one engine (`engines.two_pass`): an error in one process ends the
step in all.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from userdp.errors import FailureError
from userdp.gradients.draws import Draws, draws_of
from userdp.gradients.engines import reference
from userdp.gradients.engines.engine import Task
from userdp.gradients.made_up import EQUAL, RAGGED, Answers, made_up
from userdp.gradients.model_randomness import draw_anew, known_randomness
from userdp.gradients.row_errors import may_be_of_rows
from userdp.gradients.sums import ClippedSum
from userdp.withheld import in_code

_log = logging.getLogger(__name__)
_told: Answers[bool] = Answers()

_MOST_ATTEMPTS = 8


def sum_despite_errors(
    task: Task,
    *,
    together: Callable[[Task], ClippedSum],
    alone: Callable[[Task], ClippedSum],
) -> ClippedSum:
    """The clipped sum, in which units whose rows raise an error count as zero.

    Guarantee: no error that somebody's rows alone cause leaves this function.

    Args:
        task: what is to be computed.
        together: the sum, or the error.
        alone: the sum unit by unit, at the same aim, which forgives errors and counts them.

    Raises:
        FailureError: whether somebody's rows raise seems to hang on rare masks.
    """
    try:
        return together(task)
    except Exception as error:  # whatever the model's and the loss's code raise
        if not (may_be_of_rows(error) and _made_up_rows_run(task)):
            raise
        place = in_code(error)
    # Not in the clause above: the error holds the attempt's tensors, and its words quote rows.
    _tell_once(task, place)
    draws = draws_of(task.model, task.loss, task.units) is not Draws.NONE
    for _ in range(_MOST_ATTEMPTS):
        draw_anew()
        total = alone(task)
        if total.failed or not draws:
            return total
    raise FailureError(
        f"the model or the loss raised an error ({place}), and not again when each user was "
        "computed alone under other dropout masks: whether somebody counts would be chosen by "
        "masks, so training stopped before this update",
        hint="let the loss answer with a number where it raises, or set dropout to 0",
    )


def _made_up_rows_run(task: Task) -> bool:
    device = task.units.lengths.device
    with known_randomness("made-up rows"):
        try:
            for shape in (*RAGGED, EQUAL):
                units = made_up(task.model, shape, masked=task.masked, device=device)
                reference.sum_of_units(task.but(units=units))
        except Exception:  # the same code, on nobody's rows: whatever it raises, it does not run
            return False
    return True


def _tell_once(task: Task, place: str) -> None:
    told = _told.of(task.model, task.loss)
    if True in told:
        return
    told[True] = True
    _log.warning(
        "the model or the loss raised an error (%s) on somebody's examples. Such users count as "
        "zero, in this step and in later ones, since a step that stops would tell that they were "
        "drawn. operator.jsonl counts them (failed)",
        place,
    )
