"""Local mode: runs the objects that the operator would apply as processes on one Linux machine."""
