"""kvferry runtime: what runs in the pods of a model. Engine, agent, ring, sidecar, router."""
