"""Passes for which memory has no room: halved until they fit, with the same mathematics.

Memory runs out where it likes: in a pass, while a unit is added to the sum, in a pass that is
computed again. So nothing of the attempt is kept. The sum begins again at zero, over the same
units, from the same states of the generators, with at most half as many rows in a pass. What comes
out is, to the last bit, the sum of a call that was given that ``micro_batch`` from the start. The
cohort was drawn before, and noise is added after: neither knows of it.

**What may depend on people's data, and what may not.** How large a pass is may: lengths and counts
of the rows decide what it needs. A contribution changes by it only in its last bits, as it does
with whoever else shares the pass (`engines.batched`, 2), and the margin of the clip is for that.
Masks are drawn anew from the states in which the first attempt began. That selects none: whether
memory ran out is a matter of shapes and never of what the masks were.
Whoever watches the clock, the memory or the log sees that a pass was halved
(docs/concepts/secrets.md).

The room that was found is kept for as long as model and loss live, so that the next step does not
run out again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from userdp.errors import FailureError
from userdp.gradients.certificate.made_up import Answers, hooks_changed
from userdp.gradients.certificate.state import State
from userdp.gradients.engines.engine import Task
from userdp.gradients.model_randomness import GeneratorStates
from userdp.gradients.modes import let_go_of_memory
from userdp.gradients.precision import is_narrow
from userdp.gradients.shards import sharded_parts
from userdp.gradients.sums import ClippedSum
from userdp.out_of_memory import ran_out_of_memory

_log = logging.getLogger(__name__)
_room: Answers[int] = Answers()


def sum_that_fits(compute: Callable[[Task], ClippedSum], task: Task) -> ClippedSum:
    """The clipped sum of a task, in passes that memory has room for.

    Guarantee: the sum is ``compute(task)`` at one ``micro_batch``, of one attempt that nothing
    interrupted; ``halvings`` says how many attempts were thrown away before it.

    Args:
        compute: the sum of a task.
        task: what is to be computed.

    Raises:
        FailureError: a pass of one row does not fit; the model computes in fewer bits than float32,
            where smaller passes would move everybody's numbers by more than a margin covers; or it
            is sharded, and the other processes wait in the middle of a layer.
    """
    if hooks_changed(task.model):
        Answers.forget(task.model)
    room, halvings = _room.of(task.model, task.loss), 0
    begun, state = GeneratorStates.read(), State(task.model, task.loss)
    while True:
        fitting = task.but(micro_batch=min(task.micro_batch, room.get("rows", task.micro_batch)))
        try:
            total = compute(fitting)
        except (MemoryError, RuntimeError) as error:
            if not ran_out_of_memory(error):
                raise
        else:
            total.halvings = halvings
            return total
        # Not in the clause above: until its end the error holds the frames, and these the tensors.
        let_go_of_memory()
        state.put_back()
        rows = min(fitting.micro_batch, len(task.units.lengths))
        _require_smaller_passes(task, rows)
        begun.load()
        if not halvings and "rows" not in room:
            _log.warning(
                "memory ran out while gradients were computed: passes have at most half as many "
                "examples from here on. The users, the noise and the claim are those of the plan; "
                "a smaller micro_batch (--micro-batch) would save the time that was lost"
            )
        room["rows"] = rows // 2
        halvings += 1


def _require_smaller_passes(task: Task, rows: int) -> None:
    """Refuse to go on where passes of ``rows`` rows cannot be halved."""
    if sharded_parts(task.model):
        where = "of a sharded model, whose processes compute in step"
    elif any(map(is_narrow, task.dtypes)):
        where = (
            "of a model that computes in fewer bits than float32, where smaller passes round "
            "differently, for everybody at once"
        )
    elif rows < 2:
        where = "over one example"
    else:
        return
    raise FailureError(
        f"memory ran out in a pass {where}, so that it cannot be halved: training stopped before "
        "this update",
        hint="go on with a smaller --micro-batch, or on a machine or device with more memory; a "
        "new run needs less with --set learning.activation_checkpointing=true, --lora-rank, or a "
        "store of a smaller "
        "--seq-len",
    )
