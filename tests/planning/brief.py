"""A fixture for modules whose tests take one plan each: import it, and it holds there."""

import pytest

from tests.planning.conftest import share_noise_tables


@pytest.fixture(autouse=True, scope="module")
def horizon_alone():
    """T alone, and one table of σ per budget, for a module's tests that take one plan each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("userdp.planning.planner._STEP_FACTORS", (1,))
        share_noise_tables(patch)
        yield
