"""Training with user-level privacy, and everything that is done with a trained model.

`make_private` is the call for people with a PyTorch loop of their own; `train` is the command
line's trainer, built on it. What may be used from outside stands in `__all__`, and is imported
when it is asked for: importing this package imports no torch.
"""

from __future__ import annotations

from typing import Any

from userdp.lazily import attribute

_PUBLIC = {
    "averaging": ("build_average",),
    "config": (
        "Averaging",
        "OptimizerName",
        "PlainPlan",
        "PrivateOptions",
        "TrainConfig",
        "train_config",
    ),
    "distributed": ("current_world", "joined"),
    "evaluation": ("evaluate_splits", "held_out_splits", "release_evaluation"),
    "generation": ("GenerateConfig", "GeneratedText", "sampled_texts"),
    "loop": ("TrainResult", "train"),
    "lora": ("add_adapters",),
    "losses": ("build_loss", "split_losses"),
    "models": ("enable_checkpointing", "load_model", "read_model", "require_fit", "resolve"),
    "optimizers": ("build_optimizer", "learning_rate", "set_learning_rate"),
    "personalization": ("LocalTraining", "personalize_run"),
    "plain": ("PlainRun",),
    "private": ("PrivateRun", "make_private"),
    "probe": ("probe_store",),
    "scores": ("score_store",),
    "selftest": ("SelftestConfig", "run_selftest"),
    "steps": ("Step",),
    "store_facts": ("require_covered",),
}
__all__ = [name for names in _PUBLIC.values() for name in names]


def __getattr__(name: str) -> Any:
    return attribute(__name__, _PUBLIC, name)
