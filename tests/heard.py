"""A progress that remembers what it was told."""


class Heard:
    """All that an operation tells of its progress."""

    def __init__(self):
        self.calls = []

    def stage(self, name, total, **words):
        self.calls.append((name, total))

    def at(self, done):
        self.calls.append(done)
