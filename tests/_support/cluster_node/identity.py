"""Who the kubelet obeys: the holder of one key, which is the API server."""

from __future__ import annotations

import subprocess
from pathlib import Path


def make(folder: Path) -> tuple[Path, Path]:
    """A certificate that vouches for itself, and its key; both new in `folder`."""
    certificate, key = folder / "api-server.crt", folder / "api-server.key"
    kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=api-server"]
    files = ["-keyout", str(key), "-out", str(certificate), "-days", "30"]
    subprocess.run(["openssl", "req", "-x509", *kind, *files], check=True, capture_output=True, timeout=120)
    return certificate, key
