"""Settings of one engine process: command line, environment and the operator's configuration file, in that order."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kvferry_contract import env, paths, ports
from kvferry_contract.config import ConfigError, FailurePolicy, ModelConfig, Role, RuntimeConfig, TransferConfig
from kvferry_contract.split import WHOLE, Split
from kvferry_runtime.engine import stage_hosts
from kvferry_runtime.engine.stages import settings as stage_settings
from kvferry_runtime.engine.stages.settings import RingSettings
from kvferry_runtime.errors import SettingsError

DTYPES = ("auto", "bf16", "fp16", "fp32")
DEVICES = ("auto", "cpu", "cuda")
DEFAULT_THREADS = 1
"""Several engines share a machine in local mode, where more threads than cores make everything slower. Give more where
an engine has cores of its own, the same number to every role."""
ROWS = (1, 8, 16, 32, 64, 128, 256)
"""Rows that a decode pass may have: see `runner` for why not any number."""
DEFAULT_ROWS = 8
"""A pass reads all weights once, so 8 rows cost little more than one."""
DEFAULT_DRAIN_SECONDS = 30.0
STAGE_WAIT_SECONDS = (0.1, 86_400)
"""A group that is not complete within a day will not be."""


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What an engine needs to know.

    kv_blocks: size of the KV cache in blocks of 16 tokens, None to derive it from the free memory.
    split: of the model over this role. peer_split: over the role with which it exchanges KV. ring: this pod's place in
        its group, None where the model is not split.
    transfer, ring_directory: None where the engine works without a sidecar. trace: file for a timeline of transfers.
    """

    role: Role
    model: ModelConfig
    host: str
    port: int
    device: str
    dtype: str
    threads: int
    rows: int
    kv_blocks: int | None
    failure_policy: FailurePolicy
    drain_seconds: float
    transfer: TransferConfig | None
    ring_directory: Path | None
    split: Split
    peer_split: Split
    ring: RingSettings | None = None
    trace: Path | None = None

    @property
    def stage(self) -> int:
        """Which part of the model this process computes."""
        return 0 if self.ring is None else self.ring.stage


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model", metavar="URI", help="model folder, file://, pvc:// or hf://; the configuration's if not given"
    )
    parser.add_argument("--served-name", metavar="NAME", help="model name that clients use")
    parser.add_argument(
        "--role", choices=[role.value for role in Role], help=f"${env.ROLE} if not given, else aggregated"
    )
    parser.add_argument("--host", help=f"address to listen on; ${env.POD_IP} if not given, else 127.0.0.1")
    parser.add_argument(
        "--port",
        type=int,
        default=ports.ENGINE,
        metavar="N",
        help=f"port to listen on, 0 for any free one (default: {ports.ENGINE})",
    )
    parser.add_argument("--device", choices=DEVICES, default="auto", help="auto: a GPU where there is one")
    parser.add_argument(
        "--dtype", choices=DTYPES, default="auto", help="of weights and KV cache; auto: as the model was saved"
    )
    parser.add_argument(
        "--threads",
        type=int,
        default=DEFAULT_THREADS,
        metavar="N",
        help=f"CPU threads, the same in every role (default: {DEFAULT_THREADS})",
    )
    parser.add_argument(
        "--max-batch",
        type=int,
        choices=ROWS,
        default=DEFAULT_ROWS,
        help=f"requests that share one decode pass (default: {DEFAULT_ROWS})",
    )
    parser.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help=f"write a timeline of the transfers there at the end; ${env.TRACE} if not given, else none",
    )
    parser.add_argument(
        "--kv-blocks",
        type=int,
        metavar="N",
        help="KV cache in blocks of 16 tokens; derived from free memory if not given",
    )
    parser.add_argument(
        "--stage-wait-seconds",
        type=float,
        default=stage_hosts.WAIT_SECONDS,
        metavar="S",
        help="how long the other pipeline stages of a group may take to get an address and to load their layers "
        f"(default: {stage_hosts.WAIT_SECONDS:g})",
    )


def read(args: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> EngineSettings:
    """Put the settings together.

    Raises:
        SettingsError: something is missing, out of range, or the configuration file cannot be read.
    """
    config = _config(environ)
    role = _role(args, environ, config)
    for name, value, least, most in (
        ("--port", args.port, 0, 65535),
        ("--threads", args.threads, 1, 1024),
        ("--kv-blocks", 1 if args.kv_blocks is None else args.kv_blocks, 1, 1 << 30),
        ("--stage-wait-seconds", args.stage_wait_seconds, *STAGE_WAIT_SECONDS),
    ):
        if not least <= value <= most:
            raise SettingsError(f"{name} {value}: allowed are {least} to {most}")
    ring = environ.get(env.RING_DIR)
    trace = args.trace or environ.get(env.TRACE)
    with_agent = config is not None and role is not Role.AGGREGATED
    if with_agent and not ring:
        raise SettingsError(
            f"role {role.value} moves KV through a sidecar: set {env.RING_DIR} to the folder of its ring"
        )
    host = args.host or environ.get(env.POD_IP) or "127.0.0.1"
    ring_settings = stage_settings.read(environ, config.group, host, args.stage_wait_seconds) if config else None
    return EngineSettings(
        role=role,
        model=_model(args, environ, config),
        host=host,
        port=args.port,
        device=args.device,
        dtype=args.dtype,
        threads=args.threads,
        rows=args.max_batch,
        kv_blocks=args.kv_blocks,
        failure_policy=config.transfer.failure_policy if config else FailurePolicy.RECOMPUTE,
        drain_seconds=config.drain_seconds if config else DEFAULT_DRAIN_SECONDS,
        transfer=config.transfer if config and with_agent else None,
        ring_directory=Path(ring) if ring and with_agent else None,
        trace=Path(trace) if trace and with_agent else None,
        split=config.group.split if config else WHOLE,
        peer_split=config.group.peer_split if config else WHOLE,
        ring=ring_settings,
    )


def _config(environ: Mapping[str, str]) -> RuntimeConfig | None:
    path = environ.get(env.CONFIG)
    if not path:
        return None
    try:
        return RuntimeConfig.from_json(Path(path).read_text())
    except (OSError, UnicodeDecodeError, ConfigError) as error:
        raise SettingsError(f"{env.CONFIG}={path}: {error}") from error


def _role(args: argparse.Namespace, environ: Mapping[str, str], config: RuntimeConfig | None) -> Role:
    text = args.role or environ.get(env.ROLE)
    if text is None:
        return config.group.role if config else Role.AGGREGATED
    try:
        return Role(text)
    except ValueError:
        raise SettingsError(f"{env.ROLE}={text}: allowed are {', '.join(role.value for role in Role)}") from None


def _model(args: argparse.Namespace, environ: Mapping[str, str], config: RuntimeConfig | None) -> ModelConfig:
    directory = environ.get(env.MODEL_DIR) or (config.model.directory if config else paths.MODEL_DIR)
    if args.model is None:
        if config is None:
            raise SettingsError(f"no model: give --model, or a configuration file by {env.CONFIG}")
        return ModelConfig(
            uri=config.model.uri,
            revision=config.model.revision,
            served_name=args.served_name or config.model.served_name,
            directory=directory,
        )
    uri = args.model if "://" in args.model else f"file://{Path(args.model).absolute()}"
    return ModelConfig(
        uri=uri,
        revision=config.model.revision if config else "",
        served_name=args.served_name or (config.model.served_name if config else uri.rstrip("/").rsplit("/", 1)[-1]),
        directory=directory,
    )
