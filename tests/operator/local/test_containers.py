"""From a rendered container to a command line, an environment and folders."""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import local_objects as objects
from kvferry_contract import env
from kvferry_operator.api import names
from kvferry_operator.local import containers, environment, volumes
from kvferry_operator.local.errors import Unsupported
from kvferry_operator.local.objects import Store, store_of
from kvferry_operator.local.pods import pods_of
from kvferry_operator.local.translation import Translation

EMPTY = Store({}, {})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/models", "/here/models"),
        ("/models/x", "/here/models/x"),
        ("--model=/models/x", "--model=/here/models/x"),
        ("file:///models/x", "file:///here/models/x"),
        ("/usr/lib:/models/lib", "/usr/lib:/here/models/lib"),
        ('{"path":"/models/x"}', '{"path":"/here/models/x"}'),
        ("/models/inner/x", "/here/inner/x"),
        ("/models/innermost", "/here/models/innermost"),
        ("/models-old/x", "/models-old/x"),
        ("/models.bak", "/models.bak"),
        ("/data/models/x", "/data/models/x"),
        ("http://host/models/x", "http://host/models/x"),
        ("hf://models/x", "hf://models/x"),
        ("models/x", "models/x"),
        ("", ""),
    ],
)
def test_mount_paths_are_replaced_where_a_path_starts_and_nowhere_else(text: str, expected: str) -> None:
    translation = Translation({"/models/": "/here/models", "/models/inner": "/here/inner"})
    assert translation.text(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"), [("/models/x", "/x"), ("file:///models/x", "file:///x"), ("/models", "/")]
)
def test_the_root_folder_brings_no_second_slash(text: str, expected: str) -> None:
    assert Translation({"/models": "/"}).text(text) == expected


@given(text=st.text(max_size=60))
def test_a_text_without_mount_paths_stays_as_it_is(text: str) -> None:
    assert Translation({}).text(text) == text
    assert Translation({"/run/kvferry": "/x"}).text(text.replace("/run/kvferry", "")) == text.replace(
        "/run/kvferry", ""
    )


def test_paths_inside_json_files_are_replaced_and_other_files_are_not() -> None:
    translation = Translation({"/models": "/here"})
    config = json.dumps({"model": {"uri": "file:///models/x", "layers": 3}, "list": ["/models"]})
    assert json.loads(translation.document(config)) == {
        "model": {"uri": "file:///here/x", "layers": 3},
        "list": ["/here"],
    }
    assert translation.document("see /models") == "see /models"
    assert translation.document('{ "kept":  1.50 }') == '{ "kept":  1.50 }'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$(HOST):80", "me:80"),
        ("$$(HOST)", "$(HOST)"),
        ("$(NOBODY)", "$(NOBODY)"),
        ("$HOST $5", "$HOST $5"),
        ("$(HOST)$(HOST)", "meme"),
    ],
)
def test_references_are_expanded_as_kubernetes_does(text: str, expected: str) -> None:
    assert environment.expand(text, {"HOST": "me"}) == expected


def resolved(entries: list[dict[str, Any]], store: Store = EMPTY, host: dict[str, str] | None = None) -> dict[str, str]:
    (pod,) = pods_of([objects.stateful_set("m-decode", [{"name": "engine", "env": entries}])])
    return environment.resolve(pod, pod.containers[0], "127.64.0.9", store, host or {})


def test_variables_see_those_before_them_and_fields_of_their_pod() -> None:
    fields = {
        "IP": "status.podIP",
        "NAME": "metadata.name",
        "SPACE": "metadata.namespace",
        "ROLE": "metadata.labels['kvferry.io/role']",
    }
    entries: list[dict[str, Any]] = [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()
    ]
    entries += [{"name": "URL", "value": "http://$(IP):$(PORT)"}, {"name": "PORT", "value": "80"}]
    assert resolved(entries) == {
        "IP": "127.64.0.9",
        "NAME": "m-decode-0",
        "SPACE": "default",
        "ROLE": "decode",
        "URL": "http://127.64.0.9:$(PORT)",
        "PORT": "80",
    }


def test_a_token_comes_from_the_secret_or_from_this_machines_environment() -> None:
    entries = [{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}]
    assert resolved(entries, Store({}, {"hub": {"token": b"s"}}), {"HF_TOKEN": "h"}) == {"HF_TOKEN": "s"}
    assert resolved(entries, host={"HF_TOKEN": "h"}) == {"HF_TOKEN": "h"}
    with pytest.raises(Unsupported, match=r"m-decode-0, container engine, env HF_TOKEN: Secret hub.*set HF_TOKEN"):
        resolved(entries)


@pytest.mark.parametrize(
    "source",
    [{"resourceFieldRef": {"resource": "limits.cpu"}}, {"fieldRef": {"fieldPath": "status.startTime"}}],
)
def test_what_only_a_cluster_knows_is_refused_by_name(source: dict[str, Any]) -> None:
    with pytest.raises(Unsupported, match=r"m-decode-0, container engine, env X: .*exists only in a cluster"):
        resolved([{"name": "X", "valueFrom": source}])


def launch(
    container: objects.Manifest,
    tmp_path: Path,
    models: Path | None = None,
    known: dict[str, str] | None = None,
    **spec: Any,
) -> containers.Launch:
    """known: addresses of other pods, by their host names."""
    manifests = [objects.stateful_set("m-decode", [container], **spec)]
    (pod,) = pods_of(manifests)
    places = volumes.Places(tmp_path / "state", tmp_path / "shm", tmp_path / "logs", models)
    config = {"kind": "ConfigMap", "metadata": {"name": "config"}, "data": {"config.json": '{"dir":"/models/x"}'}}
    binary = {"kind": "Secret", "metadata": {"name": "other"}, "data": {"k": base64.b64encode(b"v").decode()}}
    store = store_of([*manifests, config, binary], [pod], b"shared")
    host = {"PATH": "/bin", "KVFERRY_ROLE": "of another", "KUBERNETES_PORT": "1"}
    addresses = {pod.name: "127.64.0.9", **(known or {})}
    machine = containers.Machine(addresses, places, store, host, {"WHERE": "file:///e"})
    return containers.launch_of(pod, pod.containers[0], machine)


def test_a_container_runs_with_its_rendered_command_files_and_variables(tmp_path: Path) -> None:
    container = {
        "name": "engine",
        "command": ["kvferry-runtime", "engine"],
        "args": ["--ring", "$(RING)", "--host", "$(IP)"],
        "env": [
            {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "RING", "value": "/run/kvferry"},
            {"name": "WHERE", "value": "kubernetes://default/m"},
        ],
        "volumeMounts": [
            {"name": "ring", "mountPath": "/run/kvferry"},
            {"name": "config", "mountPath": "/etc/kvferry"},
            {"name": "key", "mountPath": "/etc/kvferry-key"},
            {"name": "other", "mountPath": "/etc/other"},
            {"name": "models", "mountPath": "/models"},
            {"name": "tmp", "mountPath": "/tmp"},
        ],
    }
    listed = [
        {"name": "ring", "emptyDir": {"medium": "Memory", "sizeLimit": "64Mi"}},
        {"name": "config", "configMap": {"name": "config"}},
        {"name": "key", "secret": {"secretName": "m-key"}},
        {"name": "other", "secret": {"secretName": "other", "items": [{"key": "k", "path": "deep/k"}]}},
        {"name": "models", "hostPath": {"path": "/var/lib/models"}},
    ]
    found = launch(container, tmp_path, tmp_path / "models", volumes=listed)
    volumes.create(found.mounts)
    folders = {path: folder.path for path, folder in found.mounts.folders.items()}
    ring = folders["/run/kvferry"]
    assert found.argv == (
        str(Path(sys.executable).with_name("kvferry-runtime")),
        "engine",
        "--ring",
        str(ring),
        "--host",
        "127.64.0.9",
    )
    assert ring.parent == tmp_path / "shm" and ring.is_dir()
    assert found.environment == {
        "PATH": "/bin",
        "IP": "127.64.0.9",
        "RING": str(ring),
        "WHERE": "file:///e",
        "TMPDIR": str(folders["/tmp"]),
    }
    assert json.loads((folders["/etc/kvferry"] / "config.json").read_text()) == {"dir": str(tmp_path / "models" / "x")}
    key = folders["/etc/kvferry-key"] / "key"
    assert key.read_bytes() == b"shared"
    assert key.stat().st_mode & 0o777 == 0o600
    assert (folders["/etc/other"] / "deep" / "k").read_bytes() == b"v"
    assert not (tmp_path / "models").exists()


HOSTS = {
    "name": "engine",
    "command": ["x"],
    "env": [
        {
            "name": env.GROUP_INDEX,
            "valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{names.LABEL_POD_INDEX}']"}},
        },
        {"name": env.STAGE_HOSTS, "value": f"m-s0-$({env.GROUP_INDEX}).m-s0,m-s1-$({env.GROUP_INDEX}).m-s1"},
    ],
}


def test_a_stage_is_told_addresses_since_this_machine_knows_no_names_of_pods(tmp_path: Path) -> None:
    known = {"m-s0-0.m-s0": "127.64.0.1", "m-s1-0.m-s1": "127.64.0.2", "m-s1-1.m-s1": "127.64.0.3"}
    found = launch(HOSTS, tmp_path, known=known)
    assert found.environment[env.STAGE_HOSTS] == "127.64.0.1,127.64.0.2"
    del known["m-s1-0.m-s1"]
    with pytest.raises(
        Unsupported, match=r"m-decode-0, container engine, env KVFERRY_STAGE_HOSTS names the host m-s1-0"
    ):
        launch(HOSTS, tmp_path, known=known)


def test_a_nodes_folder_stands_for_itself_unless_told_otherwise(tmp_path: Path) -> None:
    container = {
        "name": "engine",
        "command": ["x", "/models/m"],
        "volumeMounts": [{"name": "m", "mountPath": "/models"}],
    }
    listed = [{"name": "m", "hostPath": {"path": "/var/lib/models"}}]
    assert launch(container, tmp_path, volumes=listed).argv == ("x", "/var/lib/models/m")
    assert launch(container, tmp_path, Path("/mine"), volumes=listed).argv == ("x", "/mine/m")


def test_rings_of_a_long_name_still_fit_a_unix_socket(tmp_path: Path) -> None:
    (pod,) = pods_of(
        [
            objects.stateful_set(
                "m" * 61,
                [{"name": "engine", "volumeMounts": [{"name": "ring", "mountPath": "/run/kvferry"}]}],
                volumes=[{"name": "ring", "emptyDir": {"medium": "Memory"}}],
            )
        ]
    )
    places = volumes.Places(tmp_path, Path("/dev/shm/kvferry-4294967295/01234567"), tmp_path, None)
    (folder,) = volumes.plan(pod, pod.containers[0], places, EMPTY).folders.values()
    assert len(str(folder.path / "agent.sock")) <= 107
