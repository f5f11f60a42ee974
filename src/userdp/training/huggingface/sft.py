"""`UserLevelSFTTrainer`: TRL's `SFTTrainer` with user-level privacy."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from userdp.core.environment import library
from userdp.training.huggingface.trainer import UserLevelMixin

if TYPE_CHECKING:
    from trl import SFTTrainer
else:
    SFTTrainer = library("trl", extra="trl", what="UserLevelSFTTrainer").SFTTrainer


class UserLevelSFTTrainer(UserLevelMixin, SFTTrainer):  # type: ignore[misc]
    """TRL's `SFTTrainer` with user-level privacy; see `UserLevelMixin` for the arguments.

    Chat templates, assistant masks and completion-only loss are TRL's own: it tokenizes the data
    set and builds the labels. What it would do after that is not done: rows are neither truncated
    nor filtered nor shuffled. A row of more than ``max_length`` tokens becomes several examples of
    its user, and rows or examples that the loss counts nothing of are dropped and counted, in the
    store.

    Its own numbers (entropy, token accuracy, tokens seen) are never computed on training data, and
    never logged.
    """

    def _prepare_dataset(self, dataset: Any, tokenizer: Any, args: Any, *more: Any) -> Any:
        if more[-1] == "train":  # the name of the data set
            args = copy.copy(args)
            args.max_length, args.shuffle_dataset = None, False
        return super()._prepare_dataset(dataset, tokenizer, args, *more)
