"""The papers' figures, recomputed: one module for each, with ``rows(...)`` and ``draw(...)``.

``rows`` returns plain dictionaries (one for each line of the CSV), ``draw`` makes the PNG from
them. `papers.harness` finds a figure by its name. Nothing that a user's own run needs lies
here.
"""
