"""Method `k8v4`: keys as in `int8`, values in four bits."""
