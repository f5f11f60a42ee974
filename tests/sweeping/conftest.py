"""The toy store of the tests of training."""

from tests.training.conftest import _one_thread, prepared, store

__all__ = ["_one_thread", "prepared", "store"]
