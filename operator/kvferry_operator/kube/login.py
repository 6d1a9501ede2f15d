"""How the operator gets in: the server's address, its certificate, and credentials that are renewed when refused."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib import request
from urllib.parse import urlsplit

import yaml
from kubernetes.aio import config as kube_config
from kubernetes.aio.client import Configuration
from kubernetes.aio.config import incluster_config

from kvferry_operator.errors import InputError

_BEARER = "BearerToken"
_HOME_CONFIG = ".kube/config"
_LOGIN_SECONDS = 30.0
_RENEWAL_PAUSE_SECONDS = 10.0
"""An exec plugin is not started for each of many refused requests."""

_UNUSABLE = (kube_config.ConfigException, OSError, ValueError, TypeError, AttributeError, KeyError, yaml.YAMLError)
"""What the library raises for files that are no kubeconfig."""


@dataclass(frozen=True, slots=True)
class Access:
    """What another client needs to speak to the same server. authorization: whole header value, or empty."""

    server: str
    ca_file: str | None
    insecure: bool
    certificate_file: str | None
    key_file: str | None
    proxy: str | None
    authorization: str


class Login:
    """Credentials from one source: a kubeconfig file, or the account that the pod runs under.

    Made by `login`. Whatever kind they are (token file, exec plugin, service account), `renew` reads them anew.
    """

    def __init__(self, source: str | None, configuration: Configuration) -> None:
        self._source = source
        self.configuration = configuration
        self._renewal = asyncio.Lock()
        self._renewed_at: float | None = None

    async def authorization(self) -> str:
        """Value of the header; empty where a client certificate says who we are.

        Raises:
            InputError: the token file is gone.
        """
        try:
            # the token of a service account is replaced on disk before it expires; this reads it once a minute
            return await self.configuration.get_api_key_with_prefix(_BEARER) or ""
        except (kube_config.ConfigException, OSError) as error:
            raise InputError(f"no way to log in: {error}") from error

    @property
    def access(self) -> Access:
        """What another client needs, as it was at our own last request."""
        known = self.configuration
        return Access(
            server=str(known.host),
            ca_file=known.ssl_ca_cert,
            insecure=not known.verify_ssl,
            certificate_file=known.cert_file,
            key_file=known.key_file,
            proxy=known.proxy,
            authorization=str(known.api_key.get(_BEARER, "")),
        )

    async def renew(self, refused: str) -> bool:
        """Read the credentials again after `refused` was not accepted. Whether there are others now.

        Raises:
            InputError: the source cannot be used any more.
        """
        async with self._renewal:
            now = asyncio.get_running_loop().time()
            due = self._renewed_at is None or now - self._renewed_at >= _RENEWAL_PAUSE_SECONDS
            if await self.authorization() == refused and due:
                self._renewed_at = now
                await _load(self._source, self.configuration)
        return await self.authorization() != refused


async def login(kubeconfig: Path | None, environment: Mapping[str, str] = os.environ) -> Login:
    """Credentials from `kubeconfig`, else $KUBECONFIG, else the pod's service account, else ~/.kube/config.

    Raises:
        InputError: none of them is there, or the one that is cannot be used.
    """
    source = _source(kubeconfig, environment)
    configuration = Configuration()
    try:
        async with asyncio.timeout(_LOGIN_SECONDS):
            await _load(source, configuration)
    except TimeoutError as error:
        raise InputError(f"{source}: its plugin gave no credentials in {_LOGIN_SECONDS:g} s") from error
    configuration.proxy = configuration.proxy or _proxy(str(configuration.host))
    return Login(source, configuration)


def _source(kubeconfig: Path | None, environment: Mapping[str, str]) -> str | None:
    """Path of the kubeconfig file, or several as $KUBECONFIG lists them; None for the pod's account."""
    if kubeconfig is not None:
        return str(kubeconfig)
    if environment.get("KUBECONFIG"):
        return environment["KUBECONFIG"]
    if environment.get(incluster_config.SERVICE_HOST_ENV_NAME):
        return None
    return str(Path(environment.get("HOME", "~")).expanduser() / _HOME_CONFIG)


async def _load(source: str | None, configuration: Configuration) -> None:
    try:
        if source is None:
            kube_config.load_incluster_config(client_configuration=configuration)
            return
        if not _is_there(source):
            raise InputError(f"{source}: no such kubeconfig; give --kubeconfig or set KUBECONFIG")
        await kube_config.load_kube_config(source, client_configuration=configuration, persist_config=False)
    except TimeoutError:
        raise
    except _UNUSABLE as error:
        where = source or "service account of this pod"
        raise InputError(f"{where}: no way to log in: {error}") from error


def _is_there(source: str) -> bool:
    return any(Path(path).expanduser().is_file() for path in source.split(os.pathsep) if path)


def _proxy(server: str) -> str | None:
    """What HTTPS_PROXY and NO_PROXY say about this server."""
    parts = urlsplit(server)
    return None if request.proxy_bypass(parts.netloc) else request.getproxies().get(parts.scheme)
