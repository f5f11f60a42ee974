"""The papers' figures, tables and studies, run from a checkout: ``python -m papers NAME``.

``figures.toml`` lists them: what each paper found, and how it is found here. A module computes some
on the spot; its `FIGURES` hold, by name, ``rows`` (plain dictionaries, one for each line of the
CSV) and ``draw``. Others are answered by runs of a *design* (`papers.design`), a file in
``designs`` that was fixed before its runs: which settings are compared, how often each is run, how
learning rates are chosen. `papers.runs` makes them, `papers.losses` has intervals, and
`papers.findings` and `papers.rules` say what they show. Nothing that a user's own run needs lies
here, and the package does not import it.
"""
