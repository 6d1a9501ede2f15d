"""What an installation decides: flags, or KVFERRY_OPERATOR_* variables where a flag is not given."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kvferry_operator.api import constraints
from kvferry_operator.api.types import PullPolicy
from kvferry_operator.desired.settings import Images, release

ENV_PREFIX = "KVFERRY_OPERATOR_"
MIN_RESYNC_SECONDS = 1.0

_EXAMPLES = """\
examples:
  kvferry-operator --leader-elect                       all namespaces, one of several replicas acts
  kvferry-operator --namespace models --namespace more  these alone, without any right in the whole cluster
  kvferry-operator --log-format text --http-port 0      from a shell, with the current kubeconfig

Each flag can be given as a variable too; a flag wins:
  KVFERRY_OPERATOR_RESYNC_SECONDS=60  KVFERRY_OPERATOR_LEADER_ELECT=true  KVFERRY_OPERATOR_NAMESPACE=models,more
"""


@dataclass(frozen=True, slots=True)
class Options:
    """namespaces: empty for all. http_port: 0 for any free one. kubeconfig: None for the usual order."""

    namespaces: tuple[str, ...] = ()
    resync_seconds: float = 300.0
    workers: int = 8
    leader_elect: bool = False
    lease_namespace: str = "kvferry-system"
    http_port: int = 8080
    images: Images = field(default_factory=lambda: Images.of_release(release()))
    pull_policy: PullPolicy = PullPolicy.IF_NOT_PRESENT
    kubeconfig: Path | None = None
    log_format: str = "json"
    log_level: str = "info"


DEFAULTS = Options()


def parse(arguments: Sequence[str] | None = None, environment: Mapping[str, str] = os.environ) -> Options:
    """Ends the process with 2 and a message when a flag or variable is wrong."""
    parser = build_parser(environment)
    given = parser.parse_args(arguments)
    try:
        namespaces = given.namespace or _namespaces(environment)
        leader_elect = _is_on(environment) if given.leader_elect is None else given.leader_elect
    except argparse.ArgumentTypeError as error:
        parser.error(str(error))
    return Options(
        namespaces=tuple(dict.fromkeys(namespaces)),
        resync_seconds=given.resync_seconds,
        workers=given.workers,
        leader_elect=leader_elect,
        lease_namespace=given.lease_namespace,
        http_port=given.http_port,
        images=Images(engine=given.engine_image, runtime=given.runtime_image, vllm=given.vllm_image),
        pull_policy=PullPolicy(given.pull_policy),
        kubeconfig=given.kubeconfig,
        log_format=given.log_format,
        log_level=given.log_level,
    )


def build_parser(environment: Mapping[str, str]) -> argparse.ArgumentParser:
    """Variables of flags with one value are their defaults, and checked like them."""
    parser = argparse.ArgumentParser(
        prog="kvferry-operator",
        description="Brings DisaggregatedModels to life in a Kubernetes cluster.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"kvferry-operator {release()}")
    parser.add_argument(
        "--namespace", action="append", type=_namespace, metavar="NAME", help="serve it; can be repeated (default: all)"
    )

    def add(flag: str, kind: Callable[[str], object], usual: object, text: str, metavar: str = "") -> None:
        default = environment.get(ENV_PREFIX + flag[2:].replace("-", "_").upper()) or str(usual)
        shown = metavar or flag.rpartition("-")[2].upper()
        parser.add_argument(flag, type=kind, default=default, metavar=shown, help=f"{text} (default: {usual})")

    add("--resync-seconds", _seconds, DEFAULTS.resync_seconds, "from one full comparison with the cluster to the next")
    add("--workers", _between(1, 256), DEFAULTS.workers, "models that are worked on at once", "N")
    parser.add_argument(
        "--leader-elect",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="act only while holding a Lease, for several replicas",
    )
    add("--lease-namespace", _namespace, DEFAULTS.lease_namespace, "where the Lease is")
    add("--http-port", _between(0, 65535), DEFAULTS.http_port, "of health and metrics; 0 for any free one")
    add("--engine-image", str, DEFAULTS.images.engine, "reference engine, where an object names none")
    add("--runtime-image", str, DEFAULTS.images.runtime, "sidecar and router, where an object names none")
    add("--vllm-image", str, DEFAULTS.images.vllm, "vLLM, where an object names none")
    policies = _one_of(*(policy.value for policy in PullPolicy))
    add("--pull-policy", policies, DEFAULTS.pull_policy.value, "of sidecar, router and vLLM's connector")
    add("--log-format", _one_of("json", "text"), DEFAULTS.log_format, "json or text")
    add(
        "--log-level", _one_of("debug", "info", "warning", "error"), DEFAULTS.log_level, "debug, info, warning or error"
    )
    parser.add_argument(
        "--kubeconfig", type=Path, metavar="FILE", help="default: $KUBECONFIG, then the pod's account, ~/.kube/config"
    )
    return parser


def _namespaces(environment: Mapping[str, str]) -> list[str]:
    return [_namespace(name) for name in environment.get(f"{ENV_PREFIX}NAMESPACE", "").split(",") if name]


def _is_on(environment: Mapping[str, str]) -> bool:
    variable = f"{ENV_PREFIX}LEADER_ELECT"
    value = environment.get(variable) or str(DEFAULTS.leader_elect)
    if value.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{variable} must be true or false, found {value!r}")
    return value.lower() == "true"


def _namespace(text: str) -> str:
    if not re.fullmatch(constraints.DNS_LABEL, text) or len(text) > 63:
        raise argparse.ArgumentTypeError(f"{text!r} is no legal namespace")
    return text


def _seconds(text: str) -> float:
    value = float(text)
    # also refuses what is no number
    if not MIN_RESYNC_SECONDS <= value <= 86400:
        raise argparse.ArgumentTypeError(f"must be {MIN_RESYNC_SECONDS:g} to 86400, found {text}")
    return value


def _between(low: int, high: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"must be {low} to {high}, found {text}")
        return int(text)

    return number


def _one_of(*choices: str) -> Callable[[str], str]:
    def choice(text: str) -> str:
        if text not in choices:
            raise argparse.ArgumentTypeError(f"must be one of {', '.join(choices)}, found {text!r}")
        return text

    return choice
