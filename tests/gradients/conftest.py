"""What every test of gradients runs under."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch.distributed as dist

from userdp.gradients.certificate.rows import Rows


@pytest.fixture
def unknown_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor of unknown place alone ends no proof: what stands behind that is tested too."""
    monkeypatch.setattr(Rows, "_end_if_unknown", lambda rows, result: None)


@pytest.fixture(autouse=True)
def _no_processes_left() -> Iterator[None]:
    """Losses that ask other processes make a world of one, in which no later test shall run."""
    yield
    if dist.is_initialized():
        dist.destroy_process_group()
