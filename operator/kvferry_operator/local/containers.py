"""From a rendered container to the command line, environment and files of a process. Pure."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kvferry_contract import env, paths
from kvferry_operator.local import environment, hosts, volumes
from kvferry_operator.local.errors import Unsupported
from kvferry_operator.local.objects import Store
from kvferry_operator.local.pods import Container, Pod

_NOT_INHERITED = ("KVFERRY_", "KUBERNETES_")
"""Variables of this machine that would speak of another deployment."""


@dataclass(frozen=True, slots=True)
class Launch:
    """What is needed to start one container as a process."""

    pod: str
    container: str
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    directory: Path
    log: Path
    mounts: volumes.Mounts


@dataclass(frozen=True, slots=True)
class Machine:
    """What stands here for the cluster around a container.

    addresses: of pods, by their name and by their host name. host: this machine's environment; a container gets it as
    the base that its image would give it. replaced: variables whose rendered value means something only in a cluster,
    with their local value.
    """

    addresses: Mapping[str, str]
    places: volumes.Places
    store: Store
    host: Mapping[str, str]
    replaced: Mapping[str, str]


def launch_of(pod: Pod, container: Container, machine: Machine) -> Launch:
    """
    Raises:
        Unsupported: no command (local mode cannot run an image), or something that only a cluster has.
    """
    places, host = machine.places, machine.host
    mounts = volumes.plan(pod, container, places, machine.store)
    declared = environment.resolve(pod, container, machine.addresses[pod.name], machine.store, host)
    command = [environment.expand(str(part), declared) for part in container.spec.get("command", ())]
    if not command:
        raise Unsupported(
            f"pod {pod.name}, container {container.name}: no command; local mode runs processes, not images: "
            "use engine.type reference, or give the container a command in the role's template"
        )
    arguments = [environment.expand(str(part), declared) for part in container.spec.get("args", ())]
    text = mounts.translation.text
    variables = {name: value for name, value in host.items() if not name.startswith(_NOT_INHERITED)}
    variables |= {name: text(value) for name, value in declared.items()}
    variables |= {name: value for name, value in machine.replaced.items() if name in declared}
    if env.STAGE_HOSTS in declared:
        where = f"pod {pod.name}, container {container.name}, env {env.STAGE_HOSTS}"
        variables[env.STAGE_HOSTS] = hosts.in_place_of_names(declared[env.STAGE_HOSTS], machine.addresses, where)
    if places.traces is not None and env.RING_DIR in declared:
        variables[env.TRACE] = str(places.traces / f"{pod.name}-{container.name}.json")
    if paths.TMP_DIR in mounts.folders:
        variables["TMPDIR"] = str(mounts.folders[paths.TMP_DIR].path)
    return Launch(
        pod=pod.name,
        container=container.name,
        argv=(executable(command[0]), *(text(part) for part in (*command[1:], *arguments))),
        environment=variables,
        directory=places.pod(pod.name),
        log=places.log(pod.name, container.name),
        mounts=mounts,
    )


def executable(command: str) -> str:
    """A command that lies beside this interpreter (`kvferry-runtime`) is taken from there, others from PATH."""
    beside = Path(sys.executable).parent / command
    return str(beside) if "/" not in command and beside.exists() else command


def endpoints_variable(file: Path) -> dict[str, str]:
    """The router reads its groups from a file; there is no API server to watch."""
    return {env.ENDPOINTS: file.as_uri()}
