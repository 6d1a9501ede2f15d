"""Router: OpenAI-compatible HTTP in front of prefill and decode groups; one answer out of two engines."""
