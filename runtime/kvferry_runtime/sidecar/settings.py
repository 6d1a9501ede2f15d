"""What a sidecar is told at start: by its environment, and by the configuration file that the operator rendered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kvferry_contract import env, paths, ports
from kvferry_contract.config import ConfigError, Role, RuntimeConfig, TransferConfig
from kvferry_runtime.errors import SettingsError
from kvferry_runtime.ring.memory import PAGE, RingGeometry
from kvferry_runtime.transport import shared_key


@dataclass(frozen=True, slots=True)
class SidecarSettings:
    """One sidecar's settings, checked.

    group: name of this pod, unique among those that talk to each other. host: address to listen on; port 0 takes a free
    one. key: the model's shared key. slots: of `transfer.chunk_bytes` payload each. tick_seconds: how often clocks are
    looked at, and PINGs sent. trace: file for a timeline of the transfers.
    """

    role: Role
    group: str
    host: str
    peer_port: int
    http_port: int
    ring_directory: Path
    key: bytes
    slots: int
    transfer: TransferConfig
    drain_seconds: float
    tick_seconds: float = 1.0
    trace: Path | None = None

    @property
    def retries(self) -> int:
        """Generations of a transfer that may follow the first one."""
        return 1 if self.transfer.failure_policy == "Retry" else 0

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> SidecarSettings:
        """Read the environment and the files that it names.

        Raises:
            SettingsError: something is missing or wrong; says what to set.
        """
        config = _config(Path(environment.get(env.CONFIG, f"{paths.CONFIG_DIR}/{paths.CONFIG_FILE}")))
        group = config.group
        name = environment.get(env.POD_NAME) or f"{group.name}-{group.role.value}-{group.revision}-s{group.stage}"
        return cls(
            role=_role(environment.get(env.ROLE), group.role),
            group=f"{group.namespace}/{name}",
            host=_host(environment),
            peer_port=ports.SIDECAR_PEER,
            http_port=ports.SIDECAR_HTTP,
            ring_directory=Path(environment.get(env.RING_DIR, paths.RING_DIR)),
            key=shared_key.read(Path(environment.get(env.KEY_FILE, f"{paths.KEY_DIR}/{paths.KEY_FILE}"))),
            slots=slots_for(config.transfer.buffer_bytes, config.transfer.chunk_bytes),
            transfer=config.transfer,
            drain_seconds=config.drain_seconds,
            trace=Path(environment[env.TRACE]) if environment.get(env.TRACE) else None,
        )


def slots_for(buffer_bytes: int, chunk_bytes: int) -> int:
    """How many slots a ring of at most `buffer_bytes` has.

    Raises:
        SettingsError: fewer than two, or no ring can have this geometry.
    """
    slots = (buffer_bytes - PAGE) // (PAGE + chunk_bytes)
    if slots < 2:
        raise SettingsError(
            f"transfer.bufferBytes of {buffer_bytes} holds {max(0, slots)} chunks of {chunk_bytes} bytes, at least 2 "
            "are needed: raise it or lower transfer.overlap.chunkBytes"
        )
    RingGeometry(slots, chunk_bytes).check()
    return slots


def _config(path: Path) -> RuntimeConfig:
    try:
        return RuntimeConfig.from_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(
            f"cannot read the configuration {path}: {error.strerror}; set {env.CONFIG} to its path"
        ) from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"the configuration {path} is not UTF-8") from error
    except ConfigError as error:
        raise SettingsError(f"{path}: {error}") from error


def _role(text: str | None, configured: Role) -> Role:
    if text and text != configured.value:
        raise SettingsError(f"{env.ROLE} is {text!r}, but the configuration is for role {configured.value!r}")
    return configured


def _host(environment: Mapping[str, str]) -> str:
    host = environment.get(env.POD_IP, "")
    if not host:
        raise SettingsError(f"{env.POD_IP} is not set: set it to the address of this pod, e.g. 127.0.0.1")
    return host
