"""Private training with the trainers of Hugging Face: `transformers.Trainer`, TRL's `SFTTrainer`.

The loop, its callbacks, its logs and its checkpoints are theirs; the gradient of each step is that
of a private step (`userdp.make_private`). `userdp/training/huggingface/trainer.py` is where the two
meet, `trainer_settings` is the table of what is refused or overridden, and `dataset` says how a
data set becomes a user store.
"""

from __future__ import annotations

from typing import Any

from userdp.lazily import attribute

_PUBLIC = {
    "sft": ("UserLevelSFTTrainer",),
    "trainer": ("UserLevelMixin", "UserLevelTrainer"),
}
__all__ = [name for names in _PUBLIC.values() for name in names]


def __getattr__(name: str) -> Any:
    return attribute(__name__, _PUBLIC, name)
