"""The control plane: reads a DisaggregatedModel, says which objects it needs, and how it is doing."""
