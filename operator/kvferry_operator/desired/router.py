"""The router: a Deployment, and the right to see which groups are ready."""

from __future__ import annotations

from kvferry_contract import env, paths, ports
from kvferry_operator.api import defaults, names, quantity
from kvferry_operator.api.types import DisaggregatedModel
from kvferry_operator.desired import devices, merge, overlay, pod, security, termination
from kvferry_operator.desired.settings import Settings
from kvferry_operator.desired.stage import Manifest, metadata
from kvferry_operator.errors import FieldError

_DRAIN_SECONDS = 45
"""Open streams may end before a router pod goes."""
_REQUESTS = {"cpu": "100m", "memory": quantity.from_bytes(128 * quantity.MIB)}


def pod_template(model: DisaggregatedModel, settings: Settings) -> tuple[Manifest, tuple[FieldError, ...]]:
    """The router's pod with the user's template on it, and what clashes."""
    template: Manifest = {
        "metadata": {
            "labels": names.labels(model.name, "router") | names.selector(model.name, "router"),
            "annotations": {names.ANNOTATION_MODEL: model.name, names.ANNOTATION_CONTAINER: names.CONTAINER_ROUTER},
        },
        "spec": {
            **security.pod_spec(),
            # the one pod of a model that talks to the API server
            "automountServiceAccountToken": True,
            "serviceAccountName": names.router(model.name),
            "terminationGracePeriodSeconds": defaults.grace_seconds(_DRAIN_SECONDS),
            "containers": [_container(model, settings)],
            "volumes": [{"name": pod.VOLUME_TMP, "emptyDir": {}}],
        },
    }
    guard = overlay.Guard(least_grace=defaults.grace_seconds(_DRAIN_SECONDS))
    return overlay.apply(template, model.spec.router.template, "spec.router.template", guard)


def deployment(model: DisaggregatedModel, template: Manifest) -> Manifest:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(model, names.router(model.name), names.labels(model.name, "router")),
        "spec": {
            "replicas": model.spec.router.replicas,
            "selector": {"matchLabels": names.selector(model.name, "router")},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "revisionHistoryLimit": 2,
            "template": template,
        },
    }


def access(model: DisaggregatedModel) -> list[Manifest]:
    """ServiceAccount, Role and RoleBinding: reading EndpointSlices of this namespace, nothing else."""
    name = names.router(model.name)
    labels = names.labels(model.name, "router")
    return [
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": metadata(model, name, labels),
            "automountServiceAccountToken": False,
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "Role",
            "metadata": metadata(model, name, labels),
            "rules": [
                {
                    "apiGroups": ["discovery.k8s.io"],
                    "resources": ["endpointslices"],
                    "verbs": ["get", "list", "watch"],
                }
            ],
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": metadata(model, name, labels),
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": model.namespace}],
        },
    ]


def _container(model: DisaggregatedModel, settings: Settings) -> Manifest:
    transfer, router = model.spec.transfer, model.spec.router
    resources = merge.onto({"requests": _defaults(model)}, devices.requirements(router.resources))
    return {
        "name": names.CONTAINER_ROUTER,
        "image": settings.images.runtime,
        "imagePullPolicy": settings.pull_policy.value,
        "command": ["kvferry-runtime", "router"],
        "args": [
            "--served-name",
            defaults.served_name(model),
            "--min-prompt-tokens",
            str(router.min_prompt_tokens),
            "--failure-policy",
            transfer.failure_policy.value,
            "--timeout-seconds",
            str(transfer.timeout_seconds),
            "--transport",
            transfer.transport.value,
            "--verify-interval-seconds",
            str(transfer.verify.interval_seconds),
            "--drain-seconds",
            str(_DRAIN_SECONDS),
        ],
        "env": [
            *pod.identity(),
            {"name": env.ENDPOINTS, "value": f"kubernetes://{model.namespace}/{names.base(model.name)}"},
            {"name": env.LOG_FORMAT, "value": "json"},
            {"name": "HOME", "value": paths.TMP_DIR},
        ],
        "ports": [{"name": "http", "containerPort": ports.ROUTER, "protocol": "TCP"}],
        "resources": resources,
        "startupProbe": _probe("/healthz", period=1, failures=60),
        "livenessProbe": _probe("/healthz", period=10, failures=6),
        "readinessProbe": _probe("/readyz", period=2, failures=2),
        **(
            {"lifecycle": {"preStop": {"sleep": {"seconds": defaults.PRE_STOP_SECONDS}}}} if settings.sleep_hook else {}
        ),
        **termination.MESSAGE,
        "securityContext": security.container(),
        "volumeMounts": [{"name": pod.VOLUME_TMP, "mountPath": paths.TMP_DIR}],
    }


def _defaults(model: DisaggregatedModel) -> dict[str, str]:
    limits = model.spec.router.resources.limits
    return {name: amount for name, amount in _REQUESTS.items() if name not in limits}


def _probe(path: str, period: int, failures: int) -> Manifest:
    return {
        "httpGet": {"path": path, "port": "http"},
        "periodSeconds": period,
        "timeoutSeconds": 2,
        "failureThreshold": failures,
    }
