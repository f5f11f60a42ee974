"""Where else a store's text left something is told, or nothing is made there."""

import os
from pathlib import Path

import pytest

from userdp.core.errors import UseError
from userdp.data.store_folder import Place, places_of, remember


def test_a_place_that_no_reader_would_take_is_refused_before_anything_is_noted(tmp_path):
    """Its line would be damage to every later reader: nobody could train or be erased any more."""
    remember(tmp_path, Place.RUN, tmp_path / "run")
    other = Path(os.fsdecode(os.fsencode(tmp_path) + b"/run-\xff"))
    with pytest.raises(UseError, match="UTF-8"):
        remember(tmp_path, Place.RUN, other)
    assert places_of(tmp_path, Place.RUN) == [str(tmp_path / "run")]
