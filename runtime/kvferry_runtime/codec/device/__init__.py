"""The methods on a GPU's memory: Triton kernels that write the host's bytes, straight from an engine's blocks."""
