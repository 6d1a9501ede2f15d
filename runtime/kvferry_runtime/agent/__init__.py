"""The library in the engine's process that hands KV over through the ring, and who owns a block when."""
