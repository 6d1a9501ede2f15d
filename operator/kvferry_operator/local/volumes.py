"""Which folder of this machine stands for each volume of a pod.

`plan` is pure; `create` makes the folders and writes the files.

| volume               | folder                                                                    |
| -------------------- | ------------------------------------------------------------------------- |
| emptyDir             | in the state folder                                                       |
| emptyDir, Memory     | in /dev/shm, under a short name (a Unix socket's path may have 107 bytes) |
| configMap, secret    | in the state folder, written before the container starts                  |
| mounted at /models   | the model folder given to local mode                                      |
| hostPath             | that path                                                                 |
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvferry_contract import paths
from kvferry_operator.local.errors import Unsupported
from kvferry_operator.local.objects import Store
from kvferry_operator.local.pods import Container, Pod
from kvferry_operator.local.translation import Translation

MEMORY = Path("/dev/shm")  # noqa: S108 (where Linux has memory-backed files)


@dataclass(frozen=True, slots=True)
class Places:
    """Where an instance keeps its things.

    state: removed at the end. memory: under /dev/shm, removed at the end. logs: one folder a pod.
    models: stands for whatever is mounted at /models; None leaves a hostPath there as it is. traces: where timelines of
    the transfers go; None for none.
    """

    state: Path
    memory: Path
    logs: Path
    models: Path | None
    traces: Path | None = None

    def pod(self, pod: str) -> Path:
        return self.state / "pods" / pod

    def log(self, pod: str, container: str) -> Path:
        return self.logs / pod / f"{container}.log"


@dataclass(frozen=True, slots=True)
class Folder:
    """One volume as one container sees it. Files with a mode of 0600 are secrets."""

    path: Path
    files: Mapping[str, bytes]
    private: bool
    scratch: bool
    """Made by us; otherwise it belongs to the user and must be there already."""


@dataclass(frozen=True, slots=True)
class Mounts:
    """What one container mounts: mount path to folder, and the translation of paths that follows."""

    folders: Mapping[str, Folder]
    translation: Translation


def plan(pod: Pod, container: Container, places: Places, store: Store) -> Mounts:
    """
    Raises:
        Unsupported: a kind of volume that only a cluster has, or a ConfigMap or Secret that is not there.
    """
    volumes = {volume["name"]: volume for volume in pod.spec.get("volumes", ())}
    models = _model_volumes(pod)
    found: dict[str, Folder] = {}
    targets: dict[str, str] = {}
    for mount in container.spec.get("volumeMounts", ()):
        volume = volumes[mount["name"]]
        if volume["name"] in models and places.models is not None:
            folder = Folder(places.models, {}, private=False, scratch=False)
        else:
            folder = _folder(pod, container, volume, places, store)
        found[mount["mountPath"]] = folder
        targets[mount["mountPath"]] = str(folder.path / mount.get("subPath", ""))
    translation = Translation(targets)
    translated = {
        path: folder if folder.private else _translated(folder, translation) for path, folder in found.items()
    }
    return Mounts(translated, translation)


def create(mounts: Mounts) -> None:
    """Make the folders and write the files; files that exist are replaced."""
    for folder in mounts.folders.values():
        if folder.scratch:
            folder.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name, content in folder.files.items():
            path = folder.path / name
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            fresh = path.with_name(f".{path.name}.new")
            fresh.touch(mode=0o600 if folder.private else 0o644)
            fresh.write_bytes(content)
            fresh.replace(path)


def memory_limits(pods: Iterable[Pod]) -> dict[str, str]:
    """`pod/volume` to the size limit (a Kubernetes quantity) of each volume in memory that states one."""
    return {
        f"{pod.name}/{volume['name']}": str(volume["emptyDir"]["sizeLimit"])
        for pod in pods
        for volume in pod.spec.get("volumes", ())
        if (volume.get("emptyDir") or {}).get("medium") == "Memory" and "sizeLimit" in volume["emptyDir"]
    }


def _model_volumes(pod: Pod) -> frozenset[str]:
    return frozenset(
        mount["name"]
        for container in pod.containers
        for mount in container.spec.get("volumeMounts", ())
        if mount["mountPath"].rstrip("/") == paths.MODEL_DIR
    )


def _folder(pod: Pod, container: Container, volume: Mapping[str, Any], places: Places, store: Store) -> Folder:
    name = volume["name"]
    if "emptyDir" in volume:
        if (volume["emptyDir"] or {}).get("medium") == "Memory":
            short = hashlib.sha256(f"{pod.name}/{name}".encode()).hexdigest()[:12]
            return Folder(places.memory / short, {}, private=False, scratch=True)
        return Folder(places.pod(pod.name) / "volumes" / name, {}, private=False, scratch=True)
    written = places.pod(pod.name) / "files" / container.name / name
    if "configMap" in volume:
        source = volume["configMap"]
        return Folder(written, _items(store.config_map(source["name"]), source), private=False, scratch=True)
    if "secret" in volume:
        source = volume["secret"]
        return Folder(written, _items(store.secret(source["secretName"]), source), private=True, scratch=True)
    if "hostPath" in volume:
        return Folder(Path(volume["hostPath"]["path"]), {}, private=False, scratch=False)
    kind = next((key for key in volume if key != "name"), "?")
    raise Unsupported(
        f"pod {pod.name}, volume {name}: a {kind} volume exists only in a cluster"
        + ("; --model-dir DIR stands in for the volume at /models only" if kind == "persistentVolumeClaim" else "")
    )


def _items(data: Mapping[str, bytes], source: Mapping[str, Any]) -> dict[str, bytes]:
    """The keys that the volume projects, under the file names it gives them."""
    if "items" not in source:
        return dict(data)
    return {item["path"]: data[item["key"]] for item in source["items"]}


def _translated(folder: Folder, translation: Translation) -> Folder:
    files = {name: _document(content, translation) for name, content in folder.files.items()}
    return Folder(folder.path, files, folder.private, folder.scratch)


def _document(content: bytes, translation: Translation) -> bytes:
    try:
        return translation.document(content.decode()).encode()
    except UnicodeDecodeError:
        return content
