"""Proof that KV crosses: canary requests through each pairing of groups, and what both sidecars recorded of them."""
