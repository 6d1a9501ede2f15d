"""Methods `fp8`, `fp8-head` and `fp8-tensor`: e4m3fn bytes, a scale for each row, head or plane."""
