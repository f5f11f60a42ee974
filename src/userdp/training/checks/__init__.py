"""The checks of `userdp selftest`: are private steps right on this machine?

What the tests of userdp show was shown on other machines, with other devices, kernels and versions.
The checks measure the mechanism itself, on the very model: does the engine agree with plain
autograd, does nobody move the sum by more than C, is the noise as the plan says, are cohorts
secret, do the processes agree. The list is `every.CHECKS`, each check in a file of its own with the
invariant of docs/invariants.md that it belongs to; `userdp.training.selftest` asks all of them of
every engine.

Nothing of it reads anybody's data: rows, cohorts and sums are made up. It spends no privacy, and
leaves weights, gradients and the states of all generators as they were.

**False alarms.** What is random is judged by `surprise`, in nats: a right mechanism is more
surprising than `surprise.MOST` with probability e^-30 < 1e-13 at each look. A check looks less than
ten times at each trainable parameter and less than a hundred times otherwise, so that a right
mechanism of up to 1e5 trainable parameters is refused with probability below 1e-7.

A check is no proof: a fault that none of them looks for is not found.
"""
