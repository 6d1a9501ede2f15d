"""The network side of a pod: sessions with other sidecars, the agent's ring, health, metrics and records."""
