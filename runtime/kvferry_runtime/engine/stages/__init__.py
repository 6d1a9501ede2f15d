"""The group's ring: how the pipeline stages of one group pass commands, activations and reports to each other."""
