"""Curves for the operator in TensorBoard, where it is installed. Never shareable."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from userdp import files


class Tracker(Protocol):
    """Takes numbers by name and step."""

    def scalar(self, name: str, value: float, step: int) -> None:
        """Note one number."""

    def close(self) -> None:
        """Write what is pending."""


class _NoTracker:
    def scalar(self, name: str, value: float, step: int) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class _TensorBoard:
    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def scalar(self, name: str, value: float, step: int) -> None:
        self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


def open_tracker(folder: Path, *, wanted: bool) -> Tracker:
    """TensorBoard's writer in ``folder`` (mode 0700), or one that writes nothing."""
    if not wanted:
        return _NoTracker()
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return _NoTracker()
    files.operator_folder(folder)
    return _TensorBoard(SummaryWriter(str(folder)))
