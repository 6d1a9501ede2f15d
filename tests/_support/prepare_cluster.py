"""Gets ready what tests on a cluster start, before a test's time limit runs: minutes the first time, then nothing."""

from __future__ import annotations

import sys

import cluster_programs
import go_programs
import helm_chart
from cluster_node import requirements


def main() -> int:
    try:
        cluster_programs.find()
        helm_chart.helm()
        if not requirements.why_not():
            go_programs.built(go_programs.COREDNS)
    except go_programs.CannotBuild as error:
        print(f"cluster: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
