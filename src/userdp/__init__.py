"""Fine-tune language models with user-level differential privacy.

::

    import userdp

    store = userdp.prepare(dataset, user="author", text="message", out="store")
    plan = userdp.plan(store, model="bundled", epsilon=4, budget=512, steps=200, population=20_000)
    run = userdp.train(store, plan, out="run")
    print(run.claim)

What needs a library is imported when it is asked for: ``import userdp`` loads neither torch nor a
database.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from userdp.core.errors import FailureError, Interrupted, UseError, UserdpError, UserdpWarning
from userdp.noise.clip_forms import Clip
from userdp.version import __version__

if TYPE_CHECKING:
    from userdp.claims import claim
    from userdp.commands.account import account
    from userdp.commands.audit import audit, selftest
    from userdp.commands.dedup import dedup
    from userdp.commands.demo import demo
    from userdp.commands.evaluate import evaluate
    from userdp.commands.export import export
    from userdp.commands.federate import federate
    from userdp.commands.generate import generate
    from userdp.commands.plan import plan
    from userdp.commands.prepare import prepare
    from userdp.commands.report import report
    from userdp.commands.store import budget, forget, members, score, settle, stats
    from userdp.commands.train import Run, train
    from userdp.commands.tune import tune
    from userdp.commands.verify import verify
    from userdp.data.user_store import UserStore
    from userdp.noise import Gaussian
    from userdp.plans import Plan
    from userdp.sampling import PoissonExamples, PoissonUsers
    from userdp.training.config import PlainPlan, PrivateOptions, RunOptions, TrainConfig
    from userdp.training.huggingface.sft import UserLevelSFTTrainer
    from userdp.training.huggingface.trainer import UserLevelMixin, UserLevelTrainer
    from userdp.training.private_run import make_private

_ELSEWHERE = {
    "claims": ("claim",),
    "commands.train": ("Run",),
    "commands.audit": ("audit", "selftest"),
    "commands.store": ("budget", "forget", "members", "score", "settle", "stats"),
    "data.user_store": ("UserStore",),
    "noise": ("Gaussian",),
    "plans": ("Plan",),
    "sampling": ("PoissonExamples", "PoissonUsers"),
    "training.config": ("PlainPlan", "PrivateOptions", "RunOptions", "TrainConfig"),
    "training.huggingface.sft": ("UserLevelSFTTrainer",),
    "training.huggingface.trainer": ("UserLevelMixin", "UserLevelTrainer"),
    "training.private_run": ("make_private",),
}
"""Where public names are defined; any other is a command, in a module of its own name."""

__all__ = [
    "Clip", "FailureError", "Gaussian", "Interrupted", "PlainPlan", "Plan", "PoissonExamples",
    "PoissonUsers", "PrivateOptions", "Run", "RunOptions", "TrainConfig", "UseError",
    "UserLevelMixin", "UserLevelSFTTrainer", "UserLevelTrainer", "UserStore", "UserdpError",
    "UserdpWarning", "__version__", "account", "audit", "budget", "claim", "dedup", "demo",
    "evaluate", "export", "federate", "forget", "generate", "make_private", "members", "plan",
    "prepare", "report", "score", "selftest", "settle", "stats", "train", "tune", "verify",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'userdp' has no attribute {name!r}")
    own = (module for module, names in _ELSEWHERE.items() if name in names)
    return getattr(import_module(f"userdp.{next(own, f'commands.{name}')}"), name)


def __dir__() -> list[str]:
    return __all__
