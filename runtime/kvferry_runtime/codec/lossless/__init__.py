"""Method `lossless`: every bit, with exponents in four bits."""
