"""Findings of the papers that need training: designs fixed beforehand, runs, intervals, verdicts.

A *design* (`design`) is a file that says, before any of its runs, which settings are compared,
how often each is run and how learning rates are chosen. `campaign` makes the runs, each through
`userdp.training.loop.train`, and writes a row as each ends; it goes on where it stopped. Each
figure (`papers.charles` and its like) reads the rows of the designs that it names
(`intervals`) and says what they show (`findings`).
"""
