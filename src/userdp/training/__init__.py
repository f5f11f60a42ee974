"""Training with user-level privacy, and everything that is done with a trained model.

`private.make_private` is the call for people with a PyTorch loop of their own; `loop.train` is the
command line's trainer, built on the same `private.PrivateRun`. Importing this package imports no
torch.
"""
