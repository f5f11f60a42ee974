"""Dropout influence: masks recorded on D, replayed on D∖u, for every engine."""
