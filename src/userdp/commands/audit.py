"""``userdp audit`` and ``userdp selftest``: what a run and this machine keep of what is claimed.

An audit attacks a finished run, repeats it with canaries and compares it with its claim. A
self-test checks the mechanism of private steps on this machine, with random tokens and no data.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

from userdp.auditing.audit_run import Attacks, audit_run
from userdp.commands.arguments import folder_of
from userdp.commands.progress import shown
from userdp.core.errors import Interrupted
from userdp.core.interrupts import on_interrupt
from userdp.core.stages import Progress
from userdp.data.user_store import UserStore
from userdp.training.distributed import joined
from userdp.training.selftest import SelftestConfig, run_selftest


def audit(
    run: str | os.PathLike[str],
    *,
    store: str | os.PathLike[str],
    device: str = "auto",
    progress: Progress | None = None,
    **attacks: Annotated[Any, Attacks],
) -> dict[str, Any]:
    """Attack a run, and bound its epsilon from below.

    The audit has three parts: a membership attack on the released model, with fresh text of
    its users; one more run of the same plan with canary users, each of whom is in or out by a
    coin, and must not be guessed too well; and white-box checks of that run's noise, draws and
    sensitivity at every step. The extra run costs about what the run did, works on a copy of the
    store, releases nothing and is not charged. The exit status is 1 where something contradicts
    the claim.

    Example::

        userdp audit run --store store

    Args:
        run: a finished run, or its folder.
        store: the store that it was trained on.
        device: auto (cuda where there is one, else cpu), cpu, cuda or cuda:N.
        progress: receives the progress; by default a bar, or lines where stderr is no terminal.
        attacks: fields of `userdp.auditing.audit_run.Attacks`, such as ``canaries``.

    Returns:
        All that was measured: ``passed`` if nothing contradicts the claim, which is no proof of it;
        ``epsilon_lower``, what the canaries prove, None without an extra run.

    Raises:
        UseError: an argument is out of range.
    """
    chosen, path = Attacks(**attacks), folder_of(run)
    left = "before its end: reference runs that are finished are kept, and nothing was charged"
    with on_interrupt(Interrupted(left), always=True), shown(progress) as bar:
        values = audit_run(path, UserStore.open(Path(store)), chosen, device=device, progress=bar)
    return {"run": str(path), "operator_only": True, **values}


def selftest(**options: Annotated[Any, SelftestConfig]) -> dict[str, Any]:
    """Check that private steps are right on this machine.

    It uses random tokens and no data: gradients against plain autograd, the sensitivity, the
    noise's deviation, tail and grid; under torchrun of what the processes do together. The exit
    status is 1 if an invariant does not hold.

    Example::

        userdp selftest --model bundled

    Args:
        options: fields of `SelftestConfig`, such as ``model``.

    Returns:
        Each check with what it measured, and whether all ``passed``.
    """
    with joined():
        return run_selftest(SelftestConfig(**options))
