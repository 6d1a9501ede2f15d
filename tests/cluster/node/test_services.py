"""How pods find each other and the API server: Services, by name."""

from __future__ import annotations

import pytest

from node_pods import Pods, container

pytestmark = pytest.mark.slow

_ANSWER = """
import http.server, os
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
        self.wfile.write(f'{os.environ["NAME"]} {self.client_address[0]}'.encode())
http.server.ThreadingHTTPServer(("", 8080), Handler).serve_forever()
"""
_PATIENTLY = """
import socket, ssl, time, urllib.request
deadline = time.monotonic() + 120
while True:
    try:
        print({look})
        break
    except OSError:  # names and packet rules take a moment to spread
        if time.monotonic() > deadline:
            raise
        time.sleep(0.1)
"""
_ASK = _PATIENTLY.format(look="urllib.request.urlopen('http://{host}/', timeout=60).read().decode()")
_RESOLVE = _PATIENTLY.format(look="socket.gethostbyname('{host}')")
_ASK_API = _PATIENTLY.format(
    look="urllib.request.urlopen('https://kubernetes.default.svc/readyz', timeout=60, context="
    "ssl.create_default_context(cafile='/var/run/secrets/kubernetes.io/serviceaccount/ca.crt')).read().decode()"
)


@pytest.fixture
def web(pods: Pods) -> Pods:
    """Pods `web` and `client`, and a Service `web` that leads to the first."""
    probe = {"httpGet": {"port": 8080}, "periodSeconds": 1, "timeoutSeconds": 30}
    pods.create("web", container("main", _ANSWER, env=[{"name": "NAME", "value": "web"}], readinessProbe=probe))
    pods.create("client", container("main"))
    service = {
        "metadata": {"name": "web"},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]},
    }
    pods.plane.api.create(f"/api/v1/namespaces/{pods.namespace}/services", service)
    for name in ("web", "client"):
        pods.wait_until_ready(name)
    return pods


def test_a_service_is_reached_by_its_name_and_sees_who_asks(web: Pods) -> None:
    address = web.get("client")["status"]["podIP"]
    for host in ("web", f"web.{web.namespace}.svc.cluster.local"):
        assert web.ran("client", _ASK.format(host=host)).strip() == f"web {address}"


def test_a_pod_reaches_itself_through_its_service(web: Pods) -> None:
    assert web.ran("web", _ASK.format(host=f"web.{web.namespace}.svc")).startswith("web ")


def test_a_headless_service_names_its_pods(web: Pods) -> None:
    """As a StatefulSet's pods are named."""
    spec = {"clusterIP": "None", "selector": {"app": "named"}, "ports": [{"port": 8080}]}
    web.plane.api.create(f"/api/v1/namespaces/{web.namespace}/services", {"metadata": {"name": "group"}, "spec": spec})
    web.create("named", container("main"), hostname="decode-0", subdomain="group")
    web.wait_until_ready("named")
    assert web.ran("client", _RESOLVE.format(host="decode-0.group")).strip() == web.get("named")["status"]["podIP"]


def test_a_pod_talks_to_the_api_server_with_its_own_account(web: Pods) -> None:
    assert web.ran("client", _ASK_API).strip() == "ok"
