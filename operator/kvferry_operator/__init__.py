"""kvferry operator: one DisaggregatedModel to the Kubernetes objects that serve it."""
