"""What a pod of a model needs of a node: a native sidecar, memory shared with it, and being looked into."""

from __future__ import annotations

import ssl
import urllib.error
import urllib.request

import pytest

from cluster_node import addresses, python_image
from eventually import eventually
from kvferry_operator.desired import security
from node_pods import WAIT, Pods, container

pytestmark = pytest.mark.slow

_WRITE = f"from pathlib import Path; Path('/ring/word').write_text('carried'); print('wrote', flush=True); {WAIT}"
_SERVE = "import http.server as h; h.test(h.SimpleHTTPRequestHandler, port=8080)"


@pytest.fixture
def pair(pods: Pods) -> Pods:
    """A pod `pair` as restricted as ours, whose sidecar writes into memory that its container serves."""
    mount = {"volumeMounts": [{"name": "ring", "mountPath": "/ring"}], "securityContext": security.container()}
    probe = {"httpGet": {"port": 8080}, "periodSeconds": 1, "timeoutSeconds": 30}
    begun = {"exec": {"command": [python_image.PYTHON, "-c", "open('/ring/word')"]}, "timeoutSeconds": 30}
    begun |= {"periodSeconds": 1, "failureThreshold": 300}
    pods.create(
        "pair",
        container("main", _SERVE, workingDir="/ring", readinessProbe=probe, **mount),
        initContainers=[container("side", _WRITE, restartPolicy="Always", startupProbe=begun, **mount)],
        volumes=[{"name": "ring", "emptyDir": {"medium": "Memory", "sizeLimit": "8Mi"}}],
        **security.pod_spec(),
    )
    pods.wait_until_ready("pair")
    return pods


def test_a_native_sidecar_shares_memory_with_the_container_it_precedes(pair: Pods) -> None:
    assert pair.ran("pair", "print(open('/ring/word').read())", "main").strip() == "carried"
    mounts = pair.ran("pair", "print(open('/proc/mounts').read())", "main")
    assert any(line.split()[:3] == ["tmpfs", "/ring", "tmpfs"] for line in mounts.splitlines())
    root = next(line for line in mounts.splitlines() if line.split()[1] == "/")
    assert "ro" in root.split()[3].split(",")


def test_a_pod_is_reached_through_the_api_server_and_from_this_machine(pair: Pods) -> None:
    eventually(lambda: pair.logs("pair", "side").strip() == "wrote", "what the sidecar printed")
    with urllib.request.urlopen(f"http://{pair.get('pair')['status']['podIP']}:8080/word", timeout=60) as answer:
        assert answer.read() == b"carried"
    assert pair.plane.api.get(f"{pair.path}/pair:8080/proxy/word", accept="*/*") == "carried"


def test_the_kubelet_obeys_nobody_but_the_api_server(pods: Pods) -> None:
    unverified = ssl.create_default_context()
    unverified.check_hostname, unverified.verify_mode = False, ssl.CERT_NONE
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(f"https://{addresses.NODE}:10250/pods", context=unverified, timeout=60)
