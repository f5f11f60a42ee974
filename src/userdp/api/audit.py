"""``userdp.audit``: attack a run, repeat it with canaries, and hold it against its claim."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from userdp.api.run import Place, folder_of
from userdp.api.train import opened
from userdp.auditing.audit_run import audit_run
from userdp.commands.progress import shown
from userdp.data.store import UserStore
from userdp.errors import UseError
from userdp.interrupts import told
from userdp.vocabulary import require_count

if TYPE_CHECKING:
    from userdp.data.progress import Progress


@dataclass(frozen=True, kw_only=True, slots=True)
class Audited:
    """What an audit found; operator-only.

    Args:
        run: its folder.
        values: all that was measured.
    """

    run: Path
    values: Mapping[str, Any]

    @property
    def passed(self) -> bool:
        """Whether nothing contradicts the claim, which is no proof of it."""
        return bool(self.values["passed"])

    @property
    def epsilon_lower(self) -> float | None:
        """What the canaries prove; None without an extra run."""
        lower: float | None = self.values["epsilon_lower"]
        return lower

    def to_dict(self) -> dict[str, Any]:
        """What ``userdp audit --json`` prints."""
        return {"run": str(self.run), "operator_only": True, **self.values}


def audit(
    run: Place,
    *,
    store: UserStore | str | Path,
    canaries: int = 128,
    inference: bool = True,
    repeat: bool = True,
    references: int = 0,
    jobs: int = 1,
    most_users: int = 2000,
    most_examples: int = 8,
    confidence: float = 0.95,
    device: str = "auto",
    progress: Progress | None = None,
) -> Audited:
    """Attack a run and give an empirical lower bound on its epsilon; operator-only.

    Args:
        run: a finished run, or its folder.
        store: that it was trained on.
        canaries: how many users to make up; more can prove a larger epsilon.
        inference: attack the released model.
        repeat: run the plan once more, with canaries, on a copy of the store: it releases nothing.
        references: make the attack also against so many reference runs (an even number).
        jobs: reference runs that train at the same time, each on a CUDA device of its own where
            that is where they train.
        most_users: most users of each side of the attack.
        most_examples: most fresh examples of a user that the attack reads.
        confidence: of the lower bound by canaries.
        device: auto (cuda where there is one, else cpu), cpu, cuda or cuda:N.
        progress: is told how far it is; by default a bar, or lines where stderr is no terminal.

    Raises:
        UseError: an argument is out of range.
    """
    if not inference and not repeat:
        raise UseError("--no-repeat and --no-inference leave nothing to audit")
    require_count("--canaries", canaries, at_least=8, at_most=100_000)
    if not 0.5 <= confidence < 1:
        raise UseError(f"--confidence must be from 0.5 to less than 1, got {confidence}")
    if references and not inference:
        raise UseError("--references serve the attack that --no-inference leaves out")
    path = folder_of(run)
    left = "before its end: reference runs that are finished are kept, and nothing was charged"
    with told(left, resume=False, always=True), shown(progress) as bar:
        values = audit_run(
            path,
            opened(store),
            inference=inference,
            references=references,
            jobs=jobs,
            repeat=repeat,
            canaries=canaries,
            most_users=most_users,
            most_examples=most_examples,
            confidence=confidence,
            device=device,
            progress=bar,
        )
    return Audited(run=path, values=values)
