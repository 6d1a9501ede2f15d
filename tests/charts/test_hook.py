"""The script of `helm test`, run against a server that is not ready at once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from helm_chart import NAMESPACE, Chart, one


@contextmanager
def answering(statuses: list[int]) -> Iterator[str]:
    """An operator that gives one status after the other; its address."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(statuses.pop(0))
            self.end_headers()
            self.wfile.write(b"as it is\n")

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_it_asks_the_operator_until_it_is_ready(chart: Chart) -> None:
    asking = one(chart.objects(), "Pod")["spec"]["containers"][0]
    assert asking["command"] == ["python3", "-c"]
    script, url = asking["args"]
    assert url == f"http://kvferry-operator.{NAMESPACE}.svc:8080/readyz"
    statuses = [503, 200]
    with answering(statuses) as address:
        here = url.replace(f"kvferry-operator.{NAMESPACE}.svc:8080", address)
        done = subprocess.run([sys.executable, "-c", script, here], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert statuses == []
    assert "503" in done.stdout
    assert "as it is" in done.stdout
