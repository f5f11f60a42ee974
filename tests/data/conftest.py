"""Busy machines are slow now and then: no test here is about time."""

from hypothesis import settings

settings.register_profile("without-deadline", deadline=None)
settings.load_profile("without-deadline")
