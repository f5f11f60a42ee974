"""Tests of the Python API share the command line's fixture."""

from tests.cli.conftest import userdp

__all__ = ["userdp"]
