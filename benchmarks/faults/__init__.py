"""Faults that are planted in the source on purpose, and whether the tests notice each.

``planted.toml`` lists them; ``python -m benchmarks.faults [NAME ...]`` tries them.
"""
