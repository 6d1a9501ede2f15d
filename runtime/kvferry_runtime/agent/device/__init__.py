"""The agent of engines whose KV lies on a GPU: side streams, events and pinned slots, and never a wait on the engine's
thread."""
