"""Engines: what computes. `reference` is ours; the commands of this folder start it and prepare a model for it."""
