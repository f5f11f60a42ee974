"""The papers' figures, recomputed: one module for each, with ``rows(...)`` and ``draw(...)``.

``rows`` returns plain dictionaries (one for each line of the CSV), ``draw`` makes the PNG from
them. Nothing here reads data: every number comes from the accountant.
"""
