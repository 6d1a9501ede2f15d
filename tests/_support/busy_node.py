"""A cluster with a node that runs a pod, until somebody ends this process: `python busy_node.py`."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from cluster_node import cluster, python_image
from node_pods import Pods, container


def main() -> None:
    with cluster.started() as real:
        with tempfile.TemporaryDirectory() as folder:
            real.node.load(python_image.build(Path(folder)))
        pods = Pods(real.plane, real.plane.namespace())
        mounts = [{"name": "memory", "mountPath": "/memory"}]
        pods.create(
            "busy",
            container("main", volumeMounts=mounts),
            volumes=[{"name": "memory", "emptyDir": {"medium": "Memory"}}],
        )
        pods.wait_until_ready("busy")
        print("running", flush=True)
        time.sleep(600)  # and if nobody does, not for ever


if __name__ == "__main__":
    main()
