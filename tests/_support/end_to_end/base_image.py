"""A base image for machines that reach Debian's packages but no image registry."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from end_to_end.errors import CannotRun, StepFailed

SUITE = "trixie"
NAME = f"localhost/kvferry-base:{SUITE}"
_PACKAGES = "python3,python3-venv,ca-certificates"
_SECONDS = 3600
_DOCKERFILE = """\
FROM scratch
ADD root.tar /
ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8
"""


def ensure() -> str:
    """The name of the base image, made by debootstrap and buildah unless buildah has it already.

    Raises:
        CannotRun: a program is missing.
        StepFailed: one of them failed.
    """
    missing = [name for name in ("buildah", "debootstrap") if shutil.which(name) is None]
    if missing:
        raise CannotRun(f"images cannot be built here: apt-get install --no-install-recommends {' '.join(missing)}")
    if subprocess.run(["buildah", "inspect", "--type=image", NAME], capture_output=True, check=False).returncode == 0:
        return NAME
    with tempfile.TemporaryDirectory(dir="/var/tmp") as scratch:
        root, context = Path(scratch, "root"), Path(scratch, "context")
        context.mkdir()
        (context / "Dockerfile").write_text(_DOCKERFILE)
        _run("debootstrap", "--variant=minbase", f"--include={_PACKAGES}", SUITE, str(root))
        _run("tar", "--create", "--file", str(context / "root.tar"), "--directory", str(root),
             "--exclude=./var/cache/apt/*", "--exclude=./var/lib/apt/lists/*", "--exclude=./dev/*", ".")  # fmt: skip
        _run("buildah", "build", "--isolation=chroot", f"--tag={NAME}", str(context))
    return NAME


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SECONDS)
    if done.returncode != 0:
        raise StepFailed(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()[-2000:]}")
