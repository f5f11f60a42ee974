"""Files that somebody broke, by accident or on purpose, given to everything that reads files.

A *target* is a small world of files (`targets`), and the readers that a user has for it. A *case*
is that world with one file of it changed (`cases`): by its bytes, or by its structure, so that what
is wrong is a field and not the syntax (`mutations`). Whatever the change, a reader ends in a right
result or in one clear `UserdpError`: in no other exception, with no file written beside its folder
or left half-written, no code of the file's run, and little time and memory (`judge`, `watch`).

``python -m benchmarks.faults.hostile`` (``make hostile``) tries cases for hours, in a process of
its own for each target, led by what they cover (`atheris`) where that is installed. What it ever
found is kept in the corpus of ``tests/hostile``, which the tests try again in seconds.
"""
