"""The plan and the model of every run here: as little as a private step can be.

Nothing is imported: what this process holds counts as its children's (`measured`).
"""

from __future__ import annotations

POPULATION = 100
PLAN = {
    "--sampling": "users",
    "--population": str(POPULATION),
    "--cohort-size": "1",
    "--group-size": "2",
    "--l2-clip-norm": "1",
    "--delta": "1e-5",
    "--noise-multiplier": "4",
}
MODEL = (
    "--model", "new", "--layers", "1", "--width", "16", "--heads", "2", "--engine", "reference",
    "--no-tensorboard",
)  # fmt: skip


def options(**changes: object) -> list[str]:
    """Of ``userdp train``; ``changes`` of the plan, by option without its dashes."""
    named = {f"--{name.replace('_', '-')}": str(value) for name, value in changes.items()}
    plan = PLAN | named
    return [*(word for pair in plan.items() for word in pair), *MODEL]
