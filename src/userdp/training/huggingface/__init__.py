"""Private training with the trainers of Hugging Face: `transformers.Trainer`, TRL's `SFTTrainer`.

The loop, its callbacks, its logs and its checkpoints are theirs; the gradient of each step is that
of a private step (`userdp.make_private`). ``trainer`` is where the two meet, ``trainer_settings``
is the table of what is refused, and ``dataset`` says how a data set becomes a user
store.
"""
