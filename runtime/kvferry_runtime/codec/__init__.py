"""Compression methods: how the rows of a chunk become a payload and back."""
