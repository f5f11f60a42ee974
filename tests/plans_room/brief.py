"""A fixture for modules whose tests take one plan each: import it, and it holds there."""

import pytest

from tests.plans_room.conftest import share_noise_tables


@pytest.fixture(autouse=True, scope="module")
def shared_tables():
    """One table of σ per budget for a module's tests."""
    with pytest.MonkeyPatch.context() as patch:
        share_noise_tables(patch)
        yield
