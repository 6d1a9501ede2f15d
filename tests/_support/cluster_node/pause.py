"""The image of the first container of each pod, made here because there is no registry to take it from."""

from __future__ import annotations

import subprocess
from pathlib import Path

from cluster_node import archive

IMAGE = "localhost/kvferry-pause:1"
_SOURCE = Path(__file__).with_name("pause.c")


def build(folder: Path) -> Path:
    """Compile it in `folder`; returns the archive."""
    program, image = folder / "pause", folder / "pause.tar"
    subprocess.run(["cc", "-static", "-Os", "-s", "-o", str(program), str(_SOURCE)], check=True, timeout=300)
    archive.write(image, IMAGE, {"/pause": program}, ["/pause"])
    return image
