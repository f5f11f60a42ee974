"""What lives are copied from: the toy store."""

from tests.training.conftest import prepared, store

__all__ = ["prepared", "store"]
