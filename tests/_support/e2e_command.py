"""`make e2e`: build the images, start a cluster with a real node, and show a model from `helm install` to nothing left.

Exit status: 0 all is as it should be; 1 a step failed; 3 this machine cannot run it, with the reason.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import sys
from pathlib import Path

import cluster_programs
import go_programs
from cluster_node import cluster, requirements
from cluster_node.cluster import RealCluster
from cluster_node.errors import NodeBusy, NodeError
from cluster_processes import CannotRun as NotStarted
from end_to_end import base_image, diagnosis, images, story
from end_to_end.errors import CannotRun, StepFailed
from end_to_end.steps import Steps
from end_to_end.tools import Tools
from go_programs import CannotBuild

_MODELS = story.ROOT / "build" / "models"
_MODELS_ON_NODE = "/var/lib/kvferry/models"
_DISK_GIB = 30
_FAILED, _CANNOT_RUN = 1, 3


def run(steps: Steps) -> None:
    """The whole run.

    Raises:
        CannotRun, CannotBuild, NodeBusy: this machine is not fit for it.
        StepFailed, AssertionError, NodeError, NotStarted: a step failed.
    """
    _check_machine()
    with steps.step("base_image", "base image"):
        base = base_image.ensure()
    with steps.step("images", "images"):
        for figure in images.build(base):
            steps.figure(figure["name"], figure["value"], figure["unit"])
    with steps.step("programs", "programs of the cluster"):
        kubectl = cluster_programs.find().kubectl
        helm = go_programs.built(go_programs.HELM)
    with contextlib.ExitStack() as running:
        with steps.step("cluster", "control plane and node"):
            real = running.enter_context(cluster.started())
        tools = Tools(real.plane.kubeconfig, kubectl, helm)
        _furnish(steps, real)
        try:
            story.run(steps, tools)
        except BaseException:
            diagnosis.tell(tools)
            raise


def _check_machine() -> None:
    why_not = requirements.why_not()
    if why_not:
        raise CannotRun(why_not)
    free = shutil.disk_usage("/var").free >> 30
    if free < _DISK_GIB:
        raise CannotRun(f"{free} GiB are free below /var, images and node take up to {_DISK_GIB}: make room")
    if not any(_MODELS.glob("*/config.json")):
        raise CannotRun(f"no model in {_MODELS}: run `make e2e`, which prepares it")


def _furnish(steps: Steps, real: RealCluster) -> None:
    """What a node gets before models come: images, and the model's files."""
    for name in images.NAMES:
        with steps.step(f"import.{name}", f"image of the {name} given to the node"):
            images.give(real.node, name)
    with steps.step("model", f"model files on the node in {_MODELS_ON_NODE}"):
        real.node.machine.run("mkdir", "--parents", _MODELS_ON_NODE)
        real.node.machine.run("mount", "--bind", "--options=ro", str(_MODELS), _MODELS_ON_NODE)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write each step's time as a JSON line")
    parser.add_argument(
        "--if-possible", action="store_true", help="where this machine cannot run it, 0 with the reason"
    )
    arguments = parser.parse_args()
    steps = Steps(arguments.json)
    try:
        run(steps)
    except (CannotRun, CannotBuild, NodeBusy) as error:
        print(f"e2e: cannot run here: {error}", file=sys.stderr)
        return 0 if arguments.if_possible else _CANNOT_RUN
    except (StepFailed, AssertionError, NodeError, NotStarted) as error:
        print(f"e2e: {error}", file=sys.stderr)
        return _FAILED
    steps.total()
    return 0


if __name__ == "__main__":
    sys.exit(main())
