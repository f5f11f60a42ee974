"""Training with user-level privacy, and everything that is done with a trained model.

Where to begin: `loop` is the trainer of ``userdp train``, from the model to its release.
`private_run` holds `make_private`, the call for PyTorch loops of one's own, and `PrivateRun`, on
which both are built; one step of it is in `step_mechanism`, and its beginning and its end in the
ledgers in `open_run`. `checks_before_charge` and `optimizer_guards` say what is refused before and
between the steps.
`huggingface` joins the trainers of `transformers` and TRL to the same run.

The rest is of three kinds: what a run is made of (`config`, `causal_models`, `lora`, `optimizers`,
`devices`, `distributed`, `collate`), what it leaves (`checkpoints`, `released_model`,
`model_origin`), and what is measured (`store_losses`, `evaluation`, `personalization`,
`sampled_texts`, `norm_probe`, `selftest`). Importing this package imports no torch.
"""
