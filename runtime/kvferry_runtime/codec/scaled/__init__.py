"""What methods with one byte for each element and fp32 scales share (`int8`, `fp8` and its scopes)."""
