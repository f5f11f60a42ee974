"""The loop: draw, clip, noise, charge, update; and all that stands around it.

`private.make_private` is the call for people with a PyTorch loop of their own; `loop.train` is the
command line's trainer, built on it. Importing this package imports no torch.
"""
