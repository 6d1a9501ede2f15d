"""The runtime sidecar: laid on any pod that has an engine, once, without undoing what is there."""

from __future__ import annotations

from kvferry_contract import env, paths, ports
from kvferry_operator.api import names, quantity
from kvferry_operator.api.types import Transfer
from kvferry_operator.desired import devices, merge, pod, security, termination
from kvferry_operator.desired.engine import variable
from kvferry_operator.desired.stage import Manifest, Stage

VOLUME_RING = "kvferry-ring"

_OWN_MEMORY = 256 * quantity.MIB
"""What the sidecar's process takes beside the ring."""
_START_SECONDS = 60


def inject(template: Manifest, stage: Stage) -> Manifest:
    """The pod template with sidecar, ring and key.

    A part that is already there keeps its own values, so that a second injection changes nothing.
    """
    return merge.fill(template, _parts(stage))


def _parts(stage: Stage) -> Manifest:
    """Everything that the sidecar adds to a pod, as a pod template of its own."""
    spec = stage.model.spec
    container = _container(stage)
    ring_mount = {"name": VOLUME_RING, "mountPath": paths.RING_DIR}
    ring_env = {"name": env.RING_DIR, "value": paths.RING_DIR}
    engine = {"name": names.CONTAINER_ENGINE, "env": [ring_env], "volumeMounts": [ring_mount]}
    if stage.settings.native_sidecars:
        lists = {"initContainers": [container | {"restartPolicy": "Always"}], "containers": [engine]}
    else:
        lists = {"containers": [engine, container]}
    return {
        "spec": {
            **lists,
            "volumes": [
                {
                    "name": VOLUME_RING,
                    "emptyDir": {"medium": "Memory", "sizeLimit": quantity.from_bytes(ring_bytes(spec.transfer))},
                },
                pod.key_volume(stage),
            ],
        }
    }


def ring_bytes(transfer: Transfer) -> int:
    """Size of the ring's volume. The ring itself takes at most `bufferBytes`; its socket and rounding take the rest."""
    return (-(-transfer.buffer_bytes // quantity.MIB) + 1) * quantity.MIB


def _container(stage: Stage) -> Manifest:
    spec = stage.model.spec
    return {
        "name": names.CONTAINER_SIDECAR,
        "image": spec.sidecar.image or stage.settings.images.runtime,
        "imagePullPolicy": stage.settings.pull_policy.value,
        "command": ["kvferry-runtime", "sidecar"],
        "env": _env(stage),
        "ports": [
            {"name": "peer", "containerPort": ports.SIDECAR_PEER, "protocol": "TCP"},
            {"name": "sidecar-http", "containerPort": ports.SIDECAR_HTTP, "protocol": "TCP"},
        ],
        "resources": _resources(stage),
        "startupProbe": _probe("/healthz", period=1, timeout=2, failures=_START_SECONDS),
        "livenessProbe": _probe("/healthz", period=10, timeout=5, failures=6),
        "readinessProbe": _probe("/readyz", period=2, timeout=2, failures=2),
        **termination.MESSAGE,
        # locking memory for the network card is the one thing that RDMA needs beyond its device
        "securityContext": security.container(*(("IPC_LOCK",) if stage.uses_rdma else ())),
        "volumeMounts": [
            *pod.contract_mounts(),
            {"name": VOLUME_RING, "mountPath": paths.RING_DIR},
            pod.key_mount(),
        ],
    }


def _env(stage: Stage) -> list[Manifest]:
    """Later ones win: what we set, what `transfer.ucx` names, what `sidecar.env` says."""
    spec = stage.model.spec
    ucx = spec.transfer.ucx
    variables = [
        *pod.contract_env(stage),
        {"name": env.RING_DIR, "value": paths.RING_DIR},
        pod.key_env(),
        {"name": "HOME", "value": paths.TMP_DIR},
        *([{"name": "UCX_TLS", "value": ucx.tls}] if ucx.tls else []),
        *([{"name": "UCX_NET_DEVICES", "value": ucx.net_devices}] if ucx.net_devices else []),
        *({"name": item.name, "value": item.value} for item in ucx.env),
        *(variable(item) for item in spec.sidecar.env),
    ]
    return list({item["name"]: item for item in variables}.values())


def _resources(stage: Stage) -> Manifest:
    """The user's, by default a request that covers the ring, and the role's devices."""
    given = stage.model.spec.sidecar.resources
    memory = quantity.from_bytes(ring_bytes(stage.model.spec.transfer) + _OWN_MEMORY)
    defaults = {"cpu": "100m", "memory": memory}
    requests = {name: amount for name, amount in defaults.items() if name not in given.limits}
    rdma = devices.rdma(stage.spec.rdma) if stage.uses_rdma else {}
    return merge.onto(merge.onto({"requests": requests}, devices.requirements(given)), rdma)


def _probe(path: str, period: int, timeout: int, failures: int) -> Manifest:
    return {
        "httpGet": {"path": path, "port": "sidecar-http"},
        "periodSeconds": period,
        "timeoutSeconds": timeout,
        "failureThreshold": failures,
    }
