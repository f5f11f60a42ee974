"""Stores with a loss mask are refused until training honours it."""

from types import SimpleNamespace

import pytest

from userdp.errors import UseError
from userdp.training.collate import require_whole_targets


def test_a_store_with_a_loss_mask_is_refused_and_one_without_passes():
    marked = SimpleNamespace(path="store", meta=SimpleNamespace(loss_mask=True))
    with pytest.raises(UseError, match="marks which tokens"):
        require_whole_targets(marked)
    require_whole_targets(SimpleNamespace(path="store", meta=SimpleNamespace(loss_mask=False)))
