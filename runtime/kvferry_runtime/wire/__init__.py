"""Frames, messages and session states of the protocol between sidecars. Pure: no I/O, no loop, no clock."""
