"""Method `int8`: signed bytes, a scale for each row."""
