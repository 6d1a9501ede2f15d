"""Ways to carry control frames and chunks between two sidecars: UCX, in memory, and a wrapper that injects faults."""
