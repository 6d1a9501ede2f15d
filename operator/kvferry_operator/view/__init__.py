"""What the cluster holds of our models, as last heard: watches and lists fill a store, which passes read."""
