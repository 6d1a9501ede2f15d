"""Method `none`: raw bytes."""
