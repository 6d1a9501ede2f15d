"""The pod of one stage with its engine alone: what the sidecar and the user's template are then laid on."""

from __future__ import annotations

from kvferry_contract import env, paths, ports
from kvferry_operator.api import defaults, names
from kvferry_operator.api.types import CacheType, EngineType
from kvferry_operator.desired import devices, engine, placement, security, termination
from kvferry_operator.desired.stage import Manifest, Stage

VOLUME_CONFIG = "kvferry-config"
VOLUME_TMP = "kvferry-tmp"
VOLUME_MODELS = "kvferry-models"
VOLUME_KEY = "kvferry-key"


def template(stage: Stage, config_map: str) -> Manifest:
    """The pod template of one stage, without sidecar and without the user's own template.

    config_map: name of the ConfigMap that holds the stage's configuration.
    """
    affinity = placement.affinity(stage)
    return {
        "metadata": {
            "labels": stage.labels,
            "annotations": {
                names.ANNOTATION_MODEL: stage.model.name,
                names.ANNOTATION_CONTAINER: names.CONTAINER_ENGINE,
                **(devices.network_annotations(stage.spec.rdma) if stage.transfers else {}),
            },
        },
        "spec": {
            **security.pod_spec(),
            "terminationGracePeriodSeconds": defaults.grace_seconds(stage.spec.drain.timeout_seconds),
            "initContainers": engine.connector_containers(stage),
            "containers": [_engine_container(stage)],
            "volumes": [
                {"name": VOLUME_CONFIG, "configMap": {"name": config_map}},
                {"name": VOLUME_TMP, "emptyDir": {}},
                {"name": VOLUME_MODELS, **_model_source(stage)},
                *engine.volumes(stage),
                *([key_volume(stage)] if stage.is_split else []),
            ],
            **({"affinity": affinity} if affinity else {}),
            "topologySpreadConstraints": placement.spread(stage),
        },
    }


def identity() -> list[Manifest]:
    """Variables by which a process knows its pod. First in every container, so that arguments can refer to them."""
    return [
        {"name": env.POD_IP, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": env.POD_NAME, "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
    ]


def contract_env(stage: Stage) -> list[Manifest]:
    """What engine and sidecar are both told."""
    return [
        *identity(),
        {"name": env.ROLE, "value": stage.runs_as.value},
        {"name": env.CONFIG, "value": f"{paths.CONFIG_DIR}/{paths.CONFIG_FILE}"},
        {"name": env.LOG_FORMAT, "value": "json"},
    ]


def key_volume(stage: Stage) -> Manifest:
    """The key that the pods of one model share."""
    return {"name": VOLUME_KEY, "secret": {"secretName": names.key(stage.model.name), "defaultMode": 0o440}}


def key_mount() -> Manifest:
    return {"name": VOLUME_KEY, "mountPath": paths.KEY_DIR, "readOnly": True}


def key_env() -> Manifest:
    return {"name": env.KEY_FILE, "value": f"{paths.KEY_DIR}/{paths.KEY_FILE}"}


def _group(stage: Stage) -> list[Manifest]:
    """Where the other stages of the pod's group are (pods of every stage with the same ordinal), and the key by which
    they know each other."""
    if not stage.is_split:
        return []
    stages = range(stage.spec.parallelism.pipeline)
    services = [names.stage(stage.model.name, stage.role.value, stage.revision, number) for number in stages]
    hosts = ",".join(f"{service}-$({env.GROUP_INDEX}).{service}" for service in services)
    index = {"fieldRef": {"fieldPath": f"metadata.labels['{names.LABEL_POD_INDEX}']"}}
    return [{"name": env.GROUP_INDEX, "valueFrom": index}, {"name": env.STAGE_HOSTS, "value": hosts}, key_env()]


def _ports(stage: Stage) -> list[Manifest]:
    http = {"name": "http", "containerPort": stage.model.spec.engine.port, "protocol": "TCP"}
    before = {"name": "stage", "containerPort": ports.STAGE, "protocol": "TCP"}
    return [http, before] if stage.is_split else [http]


def contract_mounts() -> list[Manifest]:
    return [
        {"name": VOLUME_CONFIG, "mountPath": paths.CONFIG_DIR, "readOnly": True},
        {"name": VOLUME_TMP, "mountPath": paths.TMP_DIR},
    ]


def _engine_container(stage: Stage) -> Manifest:
    spec = stage.model.spec
    resources = devices.requirements(stage.spec.resources)
    return {
        "name": names.CONTAINER_ENGINE,
        "image": engine.image(stage),
        "imagePullPolicy": spec.engine.image_pull_policy.value,
        **engine.command(stage),
        "env": [
            *contract_env(stage),
            {"name": env.MODEL_DIR, "value": paths.MODEL_DIR},
            # the root file system is read-only, and caches of libraries live below the home folder
            {"name": "HOME", "value": paths.TMP_DIR},
            *_group(stage),
            *_token(stage),
            *engine.variables(stage),
        ],
        "ports": _ports(stage),
        **({"resources": resources} if resources else {}),
        **engine.probes(stage),
        **(
            {"lifecycle": {"preStop": {"sleep": {"seconds": defaults.PRE_STOP_SECONDS}}}}
            if stage.settings.sleep_hook
            else {}
        ),
        **termination.MESSAGE,
        "securityContext": security.container(),
        "volumeMounts": [
            *contract_mounts(),
            {"name": VOLUME_MODELS, "mountPath": paths.MODEL_DIR, "readOnly": not _downloads(stage)},
            *engine.mounts(stage),
            *([key_mount()] if stage.is_split else []),
        ],
    }


def _token(stage: Stage) -> list[Manifest]:
    reference = stage.model.spec.model.token_secret_ref
    if reference is None:
        return []
    source = {"secretKeyRef": {"name": reference.name, "key": reference.key}}
    return [{"name": "HF_TOKEN", "valueFrom": source}]


def _downloads(stage: Stage) -> bool:
    """Only a model from Hugging Face is written; a custom engine may cache what it likes."""
    spec = stage.model.spec
    return spec.model.uri.startswith("hf://") or spec.engine.type is EngineType.CUSTOM


def _model_source(stage: Stage) -> Manifest:
    spec = stage.model.spec
    claim = defaults.claim_name(spec)
    cache = spec.model.cache
    if claim or cache.type is CacheType.PVC:
        return {"persistentVolumeClaim": {"claimName": claim or cache.claim_name}}
    if cache.type is CacheType.HOST_PATH:
        return {"hostPath": {"path": cache.path, "type": "Directory"}}
    limit = {} if cache.size_limit is None else {"sizeLimit": str(cache.size_limit)}
    return {"emptyDir": limit}
