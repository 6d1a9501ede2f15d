"""The DisaggregatedModel resource: its types, how an object is read, names and labels of what belongs to it."""
