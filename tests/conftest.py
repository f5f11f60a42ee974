"""Busy machines are slow now and then: no test here is about time."""

from hypothesis import HealthCheck, settings

settings.register_profile("whenever", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("whenever")
