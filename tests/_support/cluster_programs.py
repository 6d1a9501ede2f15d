"""Where the programs of a control plane come from, and in which order places are asked.

`KUBEBUILDER_ASSETS` → `PATH` → the cache → built from Go modules. A place is taken as it is: programs of two places,
and so of two versions, are never mixed. What was taken is in `Programs.source`, and is printed.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import go_programs

ETCD, API_SERVER = "etcd", "kube-apiserver"
MANAGER, SCHEDULER = "kube-controller-manager", "kube-scheduler"
COMPONENTS = (ETCD, API_SERVER, MANAGER, SCHEDULER)


@dataclass(frozen=True)
class Programs:
    """source: in words. commands: of each component that the source has, the beginning of its command line.

    Without the controller manager and the scheduler, as envtest's folder has it, objects are stored and nothing acts
    on them.
    """

    source: str
    commands: Mapping[str, tuple[str, ...]]
    kubectl: tuple[str, ...]

    @property
    def missing(self) -> tuple[str, ...]:
        return tuple(name for name in COMPONENTS if name not in self.commands)


def find(environment: Mapping[str, str] = os.environ) -> Programs:
    """The first source in order that has an API server and etcd.

    Raises:
        CannotBuild: no place has them, and they cannot be built.
        FileNotFoundError: KUBEBUILDER_ASSETS is set and does not hold them.
    """
    assets = environment.get("KUBEBUILDER_ASSETS", "")
    if assets:
        return _assets(Path(assets))
    path = environment.get("PATH", "")
    found = {name: place for name in (*COMPONENTS, "kubectl") if (place := shutil.which(name, path=path))}
    if found.keys() >= {*COMPONENTS, "kubectl"}:
        commands = {name: (found[name],) for name in COMPONENTS}
        return Programs(f"PATH ({Path(found[API_SERVER]).parent})", commands, (found["kubectl"],))
    kept = go_programs.KUBE.path.exists()
    program = str(go_programs.built(go_programs.KUBE))
    source = f"{'the cache' if kept else 'a fresh build'} ({program})"
    return Programs(source, {name: (program, name) for name in COMPONENTS}, (program, "kubectl"))


def kubectl(environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """For a cluster of somebody else: from PATH, else ours.

    Raises:
        CannotBuild: there is none, and ours cannot be built.
    """
    found = shutil.which("kubectl", path=environment.get("PATH", ""))
    return (found,) if found else (str(go_programs.built(go_programs.KUBE)), "kubectl")


def _assets(folder: Path) -> Programs:
    commands = {name: (str(folder / name),) for name in COMPONENTS if (folder / name).exists()}
    for name in (ETCD, API_SERVER):
        if name not in commands:
            raise FileNotFoundError(
                f"KUBEBUILDER_ASSETS={folder} has no {name}: fill the folder, or unset the variable"
            )
    programs = Programs(f"KUBEBUILDER_ASSETS ({folder})", commands, (str(folder / "kubectl"),))
    if programs.missing:
        note = f"{programs.source}, without {' and '.join(programs.missing)}: nothing acts on what is stored"
        return Programs(note, commands, programs.kubectl)
    return programs
