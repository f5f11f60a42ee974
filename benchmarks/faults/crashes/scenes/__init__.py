"""What is played: a command over made-up people, and what must hold of what it leaves."""

from benchmarks.faults.crashes.scenes.base import Scene
from benchmarks.faults.crashes.scenes.federated import Federate
from benchmarks.faults.crashes.scenes.runs import Audit, Export, Sweep, Train
from benchmarks.faults.crashes.scenes.stores import Append, Forget, Plan, Prepare

SCENES: dict[str, Scene] = {
    scene.name: scene
    for scene in (
        Train(), Plan(), Prepare(), Append(), Audit(), Sweep(), Export(), Forget(), Federate(),
    )
}  # fmt: skip

__all__ = ["SCENES", "Scene"]
