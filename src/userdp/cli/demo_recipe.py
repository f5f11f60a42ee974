"""What the demo runs: constants only, so that it does the same on every machine."""

from __future__ import annotations

from dataclasses import dataclass

from userdp.clip import Clip
from userdp.noise import Gaussian
from userdp.plans import Budget, Plan
from userdp.sampling import PoissonExamples, PoissonUsers
from userdp.training.config import Averaging, OptimizerName, TrainConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """One demonstration from text to report.

    Args:
        packages: installed distributions whose modules are the users; one module is one user.
        most_users: at most so many modules.
        seq_len: most tokens of an example.
        held_out_users: fraction of the modules that is never trained on.
        plans: by the name of the run; each with a declared population, not a count.
        config: of every run.
    """

    packages: tuple[str, ...]
    most_users: int
    seq_len: int
    held_out_users: float
    plans: tuple[tuple[str, Plan], ...]
    config: TrainConfig


# Both spend the same: at most so many gradients a step in expectation, times steps. The noise
# multipliers are what `userdp calibrate` found for a target epsilon of 7.9, written down so that
# the demo need not search; epsilon is recomputed from the ledger in any case. The learning rate,
# clip norms and group sizes were chosen on this text, which is public.
_STEPS = 12
_BUDGET = Budget(target_delta=1e-5, target_epsilon=7.9)
_USERS = 600  # declared: a round number, whatever the packages installed here hold

DEMO = Recipe(
    packages=("numpy", "scipy", "pyarrow", "torch", "transformers", "matplotlib"),
    most_users=640,
    seq_len=64,
    held_out_users=0.02,
    plans=(
        (
            "uls",
            Plan(
                sampling=PoissonUsers(sampling_probability=20 / _USERS, group_size=2),
                clip=Clip(l2_norm=1.0),
                noise=Gaussian(multiplier=0.4848),
                steps=_STEPS,
                population=_USERS,
                budget=_BUDGET,
            ),
        ),
        (
            "els",
            Plan(
                sampling=PoissonExamples(sampling_probability=40 / 3_800, group_size=8),
                clip=Clip(l2_norm=1.0),
                noise=Gaussian(multiplier=0.7706),
                steps=_STEPS,
                population=3_800,
                budget=_BUDGET,
            ),
        ),
    ),
    config=TrainConfig(
        optimizer=OptimizerName.ADAMW,
        learning_rate=2e-3,
        averaging=Averaging.NONE,
        evaluate_every=0,
        checkpoint_every=_STEPS,
    ),
)
