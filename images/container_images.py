"""`make images`: build the container images with docker, podman or buildah, and say what they weigh and took.

Runs on any Python >= 3.11, without the project's dependencies.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

ROOT = Path(__file__).resolve().parents[1]
REGISTRY = "ghcr.io/kvferry"
ENGINES = ("docker", "podman", "buildah")
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Image:
    dockerfile: str
    target: str


IMAGES: Mapping[str, Image] = {
    "operator": Image("operator/Dockerfile", "operator"),
    "runtime": Image("runtime/Dockerfile", "sidecar"),
    "router": Image("runtime/Dockerfile", "router"),
    "engine": Image("runtime/Dockerfile", "engine"),
    "runtime-rdma": Image("runtime/Dockerfile", "sidecar-rdma"),
}
"""Each is tagged `ghcr.io/kvferry/kvferry-<name>:<version>`."""

DEFAULT = ("operator", "runtime", "router", "engine")
"""Those that any base image can have; runtime-rdma needs one whose distribution has a new UCX with verbs."""

SECRETS = {"ca": "SSL_CERT_FILE", "pip": "PIP_CONFIG_FILE", "uv": "UV_CONFIG_FILE", "apt": "APT_CONFIG"}
"""Secret of the Dockerfiles → variable that names a file on this machine. Read while building, in no image."""


class NoEngine(Exception):
    """This machine has no container engine that works. The message says how to get one."""


class BuildFailed(Exception):
    """An image could not be built; what the engine said has gone to standard error."""


class Figure(TypedDict):
    """value: bytes of all layers, before compression. seconds: what the build took."""

    name: str
    value: int
    unit: str
    seconds: float
    image: str


def version() -> str:
    project: str = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    return project


def tag(name: str) -> str:
    return f"{REGISTRY}/kvferry-{name}:{version()}"


def find_engine(wanted: str = "") -> str:
    """The engine that was asked for, else the first that works here.

    Raises:
        NoEngine: it does not work, or none does.
    """
    for engine in (wanted,) if wanted else ENGINES:
        if shutil.which(engine) and _answers(engine):
            return engine
    names = wanted or ", ".join(ENGINES)
    raise NoEngine(f"no container engine that works here ({names}): install one (Debian: apt-get install buildah)")


def build_command(
    engine: str,
    image: Image,
    name: str,
    base: str = "",
    revision: str = "",
    environment: Mapping[str, str] = os.environ,
) -> list[str]:
    """The command line that builds one image, to be run in the root of the repository."""
    # without --layers buildah keeps nothing between two builds; chroot needs no privilege that a build machine lacks
    start = (
        ["buildah", "build", "--layers", "--force-rm", "--isolation=chroot"]
        if engine == "buildah"
        else [engine, "build"]
    )
    labels = {"version": version(), **({"revision": revision} if revision else {})}
    return [
        *start,
        *(f"--secret=id={secret},src={environment[name]}" for secret, name in SECRETS.items() if environment.get(name)),
        *(f"--label=org.opencontainers.image.{key}={value}" for key, value in labels.items()),
        *([f"--build-arg=BASE_IMAGE={base}"] if base else []),
        f"--file={image.dockerfile}",
        f"--target={image.target}",
        f"--tag={name}",
        ".",
    ]


def size(engine: str, name: str) -> int:
    """Bytes of all its layers."""
    if engine == "buildah":
        told = json.loads(_output(engine, "inspect", "--type=image", name))
        return sum(layer["size"] for layer in json.loads(told["Manifest"])["layers"])
    return int(_output(engine, "image", "inspect", "--format={{.Size}}", name))


def save_command(engine: str, name: str) -> list[str]:
    """The command line that writes an image to standard output, as an archive that containerd and every engine load."""
    if engine == "buildah":
        return ["buildah", "push", "--quiet", name, f"docker-archive:/dev/stdout:{name}"]
    return [engine, "save", name]


def revision() -> str:
    """The commit that is checked out, empty where git cannot say."""
    if not shutil.which("git"):
        return ""
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def build(engine: str, names: Sequence[str], base: str) -> Iterator[Figure]:
    """Build one after the other and yield a line of figures for each.

    Raises:
        BuildFailed: the engine failed.
    """
    for name in names:
        begun = time.monotonic()
        before = _identity(engine, tag(name))
        command = build_command(engine, IMAGES[name], tag(name), base, revision())
        if subprocess.run(command, cwd=ROOT, stdout=sys.stderr, check=False).returncode != 0:
            raise BuildFailed(f"{engine} failed to build {tag(name)}, see above")
        seconds = round(time.monotonic() - begun, 1)
        if before not in ("", _identity(engine, tag(name))):
            # the image that had this tag until now has no name any more, and weighs gigabytes
            subprocess.run([engine, "rmi", before], capture_output=True, check=False)
        yield Figure(
            name=f"image.{name}", value=size(engine, tag(name)), unit="bytes", seconds=seconds, image=tag(name)
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Build what is asked for; 0 on success, 1 when a build failed, 3 when this machine has no engine."""
    args = build_parser().parse_args(arguments)
    try:
        engine = find_engine(args.engine)
    except NoEngine as error:
        print(f"images: {error}", file=sys.stderr)
        return 3
    figures = []
    try:
        for figure in build(engine, args.names or DEFAULT, args.base_image):
            figures.append(figure)
            print(f"{figure['image']:<50} {figure['value'] / MIB:>8,.0f} MiB {figure['seconds']:>7.1f} s", flush=True)
    except BuildFailed as error:
        print(f"images: {error}", file=sys.stderr)
        return 1
    finally:
        if args.json:
            args.json.write_text("".join(json.dumps(figure) + "\n" for figure in figures))
    return 0


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="container_images.py", description=(__doc__ or "").partition("\n")[0])
    names = f"{', '.join(IMAGES)} (default: {', '.join(DEFAULT)})"
    parser.add_argument("names", nargs="*", choices=(*IMAGES, []), metavar="IMAGE", help=names)
    parser.add_argument("--engine", default="", choices=("", *ENGINES), help="default: the first that works here")
    parser.add_argument("--base-image", default="", help="one with Python >= 3.11 (default: the Dockerfiles' own)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write one JSON line for each image")
    return parser


def _identity(engine: str, name: str) -> str:
    """Of the image with this tag; empty when there is none."""
    listed = subprocess.run([engine, "images", "--quiet", name], capture_output=True, text=True, check=False)
    return listed.stdout.strip()


def _answers(engine: str) -> bool:
    probe = [engine, "info"] if engine != "buildah" else [engine, "images", "--quiet"]
    try:
        return subprocess.run(probe, capture_output=True, check=False, timeout=30).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


if __name__ == "__main__":
    sys.exit(main())
