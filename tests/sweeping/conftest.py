"""The toy store of the tests of training."""

from tests.training.conftest import prepared, store

__all__ = ["prepared", "store"]
