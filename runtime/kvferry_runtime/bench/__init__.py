"""Benchmarks of the transfers: real processes, with the limits of the machine measured in the same run."""
