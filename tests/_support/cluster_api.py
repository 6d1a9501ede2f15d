"""Plain requests to an API server, for what tests prepare and look at: one connection each, no cache, no retry."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import tempfile
import urllib.parse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

_SECONDS = 90.0


class Refused(Exception):
    """The API server's answer was no. code: of HTTP. reason: of the Status object, such as Conflict or Invalid."""

    def __init__(self, code: int, body: bytes) -> None:
        try:
            status = json.loads(body)
        except ValueError:
            status = {"message": body[:500].decode(errors="replace")}
        self.code = code
        self.reason = str(status.get("reason", ""))
        self.causes: list[dict[str, str]] = (status.get("details") or {}).get("causes") or []
        super().__init__(f"{code} {self.reason}: {status.get('message', '')}")


@dataclass(frozen=True)
class Access:
    """How an API server is reached and by whom. authority: certificates in PEM form, empty for the system's."""

    url: str
    authority: str = ""
    token: str = ""
    certificate: str = ""
    key: str = ""

    @classmethod
    def of(cls, kubeconfig: Path) -> Access:
        """The current context of a kubeconfig with a token or a client certificate.

        Raises:
            ValueError: the user is known by another way, such as a plugin.
        """
        config = yaml.safe_load(kubeconfig.read_text())
        named = {kind: {entry["name"]: entry for entry in config[kind]} for kind in ("contexts", "clusters", "users")}
        context = named["contexts"][config["current-context"]]["context"]
        cluster = named["clusters"][context["cluster"]]["cluster"]
        user = named["users"][context["user"]]["user"]
        token, certificate = user.get("token", ""), _content(user, "client-certificate", kubeconfig)
        if not token and not certificate:
            raise ValueError(f"{kubeconfig}: user {context['user']} has neither a token nor a client certificate")
        authority = _content(cluster, "certificate-authority", kubeconfig)
        return cls(cluster["server"], authority, token, certificate, _content(user, "client-key", kubeconfig))

    def kubeconfig(self, path: Path) -> Path:
        """Write it as a kubeconfig that only this user can read."""
        cluster = {"server": self.url}
        if self.authority:
            cluster["certificate-authority-data"] = base64.b64encode(self.authority.encode()).decode()
        user = {"token": self.token}
        if self.certificate:
            user = {
                "client-certificate-data": base64.b64encode(self.certificate.encode()).decode(),
                "client-key-data": base64.b64encode(self.key.encode()).decode(),
            }
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "test", "user": user}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "current-context": "test",
        }
        path.touch(mode=0o600)
        path.write_text(yaml.safe_dump(config, sort_keys=False))
        return path


def _content(entry: dict[str, str], key: str, kubeconfig: Path) -> str:
    if f"{key}-data" in entry:
        return base64.b64decode(entry[f"{key}-data"]).decode()
    return (kubeconfig.parent / entry[key]).read_text() if key in entry else ""


class Api:
    """Safe for threads."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self._place = urllib.parse.urlsplit(access.url)
        self._tls = tls(access) if self._place.scheme == "https" else None

    def get(self, path: str, accept: str = "application/json") -> Any:
        return self.request("GET", path, accept=accept)

    def create(self, path: str, manifest: Any, query: str = "") -> Any:
        return self.request("POST", path + query, manifest)

    def merge(self, path: str, change: Any) -> Any:
        """Merge patch."""
        return self.request("PATCH", path, change, "application/merge-patch+json")

    def apply(self, path: str, manifest: Any, manager: str = "tests") -> Any:
        """Server-side apply, with force and strict validation."""
        query = f"?fieldManager={manager}&force=true&fieldValidation=Strict"
        return self.request("PATCH", path + query, manifest, "application/apply-patch+yaml")

    def delete(self, path: str, body: Any = None) -> Any:
        return self.request("DELETE", path, body)

    def request(
        self, method: str, path: str, body: Any = None, kind: str = "application/json", accept: str = "application/json"
    ) -> Any:
        """The answer: decoded, or as text where `accept` is not plain JSON.

        Raises:
            Refused: it is an error.
            OSError: there is no answer.
        """
        headers = {"Accept": accept, "Content-Type": kind}
        if self.access.token:
            headers["Authorization"] = f"Bearer {self.access.token}"
        connection = self._connection()
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise OSError(f"{method} {self.access.url}{path}: {error}") from error
        finally:
            connection.close()
        if answer.status >= 400:
            raise Refused(answer.status, content)
        return json.loads(content) if accept == "application/json" else content.decode()

    def ready(self) -> bool:
        """Whether it says that it is ready."""
        try:
            return bool(self.get("/readyz", accept="*/*") == "ok")
        except (OSError, Refused):
            return False

    def _connection(self) -> http.client.HTTPConnection:
        host, port = self._place.hostname or "", self._place.port
        if self._tls is None:
            return http.client.HTTPConnection(host, port, timeout=_SECONDS)
        return http.client.HTTPSConnection(host, port, timeout=_SECONDS, context=self._tls)


def tls(access: Access) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=access.authority or None)
    if access.certificate:
        with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
            file.write(access.certificate + "\n" + access.key)
            file.flush()
            context.load_cert_chain(file.name)
    return context
