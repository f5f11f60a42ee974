"""Eight processes at once on one store: do the ledgers hold every charge, is each claim right?

Some train and are killed and go on, some ask under differential privacy, one appends, one erases
people, one reads claims and reports, one looks and sweeps. Each writes to a file of its own, by
single calls of the system, what it is about to charge and what it was told is charged (`notes`). A
judge reads these files and the ledgers, and knows nothing of the code that wrote them (`judge`): a
claim that somebody read must hold at least what was acknowledged before the reading began, and at
most what was begun before it ended.

``python -m benchmarks.faults.many`` plays for ten minutes, and writes a row and the section of the
page; ``--twin`` plays with a deliberate fault of the library, which must be caught.
"""
