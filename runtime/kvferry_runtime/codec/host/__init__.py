"""What compiled methods share on host memory: compiling, pointers, vectors, elements, addresses."""
