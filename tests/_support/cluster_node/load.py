"""`python -m cluster_node.load ARCHIVE…`: give images to the node that runs on this machine."""

from __future__ import annotations

import sys
from pathlib import Path

from cluster_node import containerd, machine
from cluster_node.errors import NodeError


def main(archives: list[str]) -> int:
    try:
        node = machine.running()
        for archive in archives:
            containerd.load(node, Path(archive))
            print(f"cluster: loaded {archive}")
    except (NodeError, OSError) as error:
        print(f"cluster: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
