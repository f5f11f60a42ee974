"""600 mutants of what privacy rests on, drawn by a committed seed; the tests must notice each.

`positions` lists what cosmic-ray's operators (and two of our own, `operators`) can change, and
leaves out by rule what means nothing. `draw` takes 600 of these. `covering` knows which fast test
runs which line; `trials` plants a mutant in a copy of the source and runs the tests that run its
line, those of the same part and the cheapest first, until one fails or 15 s of processor time are
spent (``--seconds``). A mutant that survives gets a test, or stands in ``survivors.toml`` with the
reason why it changes nothing that anybody relies on.
"""
