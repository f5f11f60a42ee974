"""People who come and go: who was in a store when what was released, and how one is erased."""
