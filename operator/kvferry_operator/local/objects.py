"""ConfigMaps and Secrets that pods refer to, looked up among the objects. Pure."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kvferry_contract import paths
from kvferry_contract.config import Role, RuntimeConfig
from kvferry_contract.split import Split
from kvferry_operator.local.errors import Unsupported
from kvferry_operator.local.pods import Manifest, Pod


@dataclass(frozen=True, slots=True)
class Store:
    """Name to key to value, for both kinds."""

    config_maps: Mapping[str, Mapping[str, bytes]]
    secrets: Mapping[str, Mapping[str, bytes]]

    def config_map(self, name: str) -> Mapping[str, bytes]:
        """
        Raises:
            Unsupported: not among the objects.
        """
        if name not in self.config_maps:
            raise Unsupported(
                f"ConfigMap {name} exists only in a cluster: local mode has the objects of the model alone"
            )
        return self.config_maps[name]

    def secret(self, name: str) -> Mapping[str, bytes]:
        """
        Raises:
            Unsupported: not among the objects.
        """
        if name not in self.secrets:
            raise Unsupported(f"Secret {name} exists only in a cluster: local mode has the objects of the model alone")
        return self.secrets[name]


def store_of(objects: Iterable[Manifest], pods: Iterable[Pod], shared_key: bytes) -> Store:
    """What the objects hold, and the shared key's Secret, which whoever applies the objects must make."""
    config_maps: dict[str, Mapping[str, bytes]] = {}
    secrets: dict[str, Mapping[str, bytes]] = {name: {paths.KEY_FILE: shared_key} for name in key_secrets(pods)}
    for manifest in objects:
        name = manifest.get("metadata", {}).get("name", "")
        if manifest.get("kind") == "ConfigMap":
            binary = {key: base64.b64decode(value) for key, value in (manifest.get("binaryData") or {}).items()}
            config_maps[name] = _plain(manifest.get("data")) | binary
        elif manifest.get("kind") == "Secret":
            encoded = {key: base64.b64decode(value) for key, value in (manifest.get("data") or {}).items()}
            secrets[name] = encoded | _plain(manifest.get("stringData"))
    return Store(config_maps, secrets)


def splits_of(objects: Iterable[Manifest]) -> dict[Role, Split]:
    """How each role of the object is split into pipeline stages, as the configuration of its pods tells."""
    found: dict[Role, Split] = {}
    for manifest in objects:
        text = (manifest.get("data") or {}).get(paths.CONFIG_FILE) if manifest.get("kind") == "ConfigMap" else None
        if text is not None:
            group = RuntimeConfig.from_json(text).group
            found[Role.DECODE if group.role is Role.AGGREGATED else group.role] = group.split
    return found


def key_secrets(pods: Iterable[Pod]) -> frozenset[str]:
    """Names of the Secrets mounted where the shared key is expected."""
    names: set[str] = set()
    for pod in pods:
        volumes = {volume["name"]: volume for volume in pod.spec.get("volumes", ())}
        for container in pod.containers:
            for mount in container.spec.get("volumeMounts", ()):
                volume = volumes.get(mount["name"], {})
                if mount["mountPath"].rstrip("/") == paths.KEY_DIR and "secret" in volume:
                    names.add(volume["secret"]["secretName"])
    return frozenset(names)


def _plain(data: Mapping[str, str] | None) -> dict[str, bytes]:
    return {key: value.encode() for key, value in (data or {}).items()}
