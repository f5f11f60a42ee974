"""What lives are copied from: the toy store; and private selections that draw two trials."""

from tests.sweeping.conftest import two_trials
from tests.training.conftest import prepared, store

__all__ = ["prepared", "store", "two_trials"]
