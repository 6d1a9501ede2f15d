"""From a DisaggregatedModel to the Kubernetes objects that serve it. Pure: `build.build` is the one entry."""
