"""The demo: real prompts to a small model, once with prefill and decode apart, once in one engine, side by side."""
