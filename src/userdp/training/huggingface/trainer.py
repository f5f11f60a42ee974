"""`UserLevelTrainer`: `transformers.Trainer` with user-level privacy."""

from __future__ import annotations

from userdp.training.huggingface.mixin import UserLevelMixin


class UserLevelTrainer(UserLevelMixin):
    """`transformers.Trainer` with user-level privacy; see `UserLevelMixin` for the arguments.

    ::

        trainer = UserLevelTrainer(
            model, args, train_dataset=dataset, processing_class=tokenizer,
            user_column="author", plan=plan, store="people",
        )
        trainer.train()
        print(trainer.claim.headline)
    """
