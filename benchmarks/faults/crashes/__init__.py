"""Real processes of every command that writes: killed, or refused by the disk, and gone on with.

A *case* is a command over a folder of its own, and a fault in it: ``SIGKILL`` at a random instant,
before a random change of a file, in the middle of a write, or together with everything that was not
synced (a power cut); a full disk, an I/O error, a folder that became read-only. Then the same
command is given again, as its user would, until it ends; it may be killed on the way again. What
lies in the folder is judged after each life by `oracle`, which reads files and knows nothing of the
code that wrote them.

``python -m benchmarks.faults.crashes`` draws the cases by a committed seed, runs those of which no
result is kept yet, and writes the table.
"""
