"""Simulations of the papers: no store, no model, numpy alone."""
