"""What much of something costs: steps, runs in a store, users, records of one user.

`python -m benchmarks.faults.soak` measures, each by itself and resumable: 20,000 steps in one
process (`steps`), 200 runs in one store (`runs`), 10^6 users and one user of 10^6 records
(`people`). Each command is a real process, of which the kernel tells processor time and most
memory. Nothing may grow faster than what there is more of.
"""
