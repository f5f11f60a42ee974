"""What every test of the audit shares."""

from tests.training.conftest import _one_thread

__all__ = ["_one_thread"]
