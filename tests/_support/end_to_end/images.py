"""The project's images on the node, without a registry between."""

from __future__ import annotations

import subprocess
from pathlib import Path

import container_images
from cluster_node.node import Node
from end_to_end.errors import StepFailed

NAMES = ("operator", "runtime", "engine")
_ENGINE = "buildah"


def build(base: str) -> list[container_images.Figure]:
    """Build them, from what earlier builds left where that still fits.

    Raises:
        StepFailed: one could not be built.
    """
    try:
        return list(container_images.build(_ENGINE, NAMES, base))
    except container_images.BuildFailed as error:
        raise StepFailed(str(error)) from None


def give(node: Node, name: str) -> None:
    """Stream one image into the node's containerd; no archive is written between.

    Raises:
        NodeFailed: containerd refuses it.
        StepFailed: it could not be read.
    """
    command = container_images.save_command(_ENGINE, container_images.tag(name))
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as saving:
        assert saving.stdout is not None and saving.stderr is not None
        node.load(Path(f"/proc/self/fd/{saving.stdout.fileno()}"))
        saving.stdout.close()
        said = saving.stderr.read().decode(errors="replace")
    if saving.returncode != 0:
        raise StepFailed(f"{' '.join(command)}: {said.strip()}")
