"""Engines: ways to compute the same clipped sum, from the slow oracle to one backward pass."""
