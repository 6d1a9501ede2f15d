"""Plays the kubelet for pods that the real scheduler bound, as a test steers it. No container is ever started.

    async with kubelet_stand_in.playing(plane.api.access, nodes={"node-1": {"rdma/hca": "4"}}) as kubelet:
        kubelet.policy = by_labels(({"kvferry.io/role": "decode"}, UNREADY))

It follows a watch, so that a thousand pods are ready in seconds, and goes on when the API server comes back.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

import aiohttp

import played_nodes
import pod_behaviours
from cluster_api import Access, tls
from hang_up import hang_up
from pod_behaviours import READY, Behaviour, Policy

Manifest = dict[str, Any]
Key = tuple[str, str]

_HEARTBEAT_SECONDS = 10.0
_RETRY_SECONDS = 0.2
_AT_ONCE = 32


class KubeletStandIn:
    """policy: what becomes of each pod; setting it looks at all pods again."""

    def __init__(self, session: aiohttp.ClientSession, nodes: Iterable[str]) -> None:
        self._session = session
        self._nodes = {name: f"10.201.0.{number}" for number, name in enumerate(nodes, 1)}
        self._policy: Policy = lambda pod: READY
        self._pods: dict[Key, Manifest] = {}
        self._chosen: dict[str, tuple[Behaviour, bool, float]] = {}
        self._told: dict[str, Behaviour] = {}
        self._addresses: dict[str, str] = {}
        self._numbers = itertools.count(1)
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        self._again: set[Key] = set()
        self._mistakes: list[BaseException] = []
        self._gate = asyncio.Semaphore(_AT_ONCE)

    @property
    def policy(self) -> Policy:
        return self._policy

    @policy.setter
    def policy(self, policy: Policy) -> None:
        self._policy = policy
        self.look_again()

    @property
    def pods(self) -> list[Manifest]:
        """The pods of its nodes, as last heard."""
        return list(self._pods.values())

    def look_again(self) -> None:
        """Ask the policy anew for every pod."""
        for key in list(self._pods):
            self._kick(key)

    # The watch.

    async def follow(self) -> None:
        """Hear of pods for ever."""
        while True:
            with contextlib.suppress(aiohttp.ClientError, TimeoutError, json.JSONDecodeError):
                version = await self._list()
                await self._watch(version)
            await asyncio.sleep(_RETRY_SECONDS)

    async def _list(self) -> str:
        async with self._session.get("/api/v1/pods") as answer:
            answer.raise_for_status()
            found = await answer.json()
        mine = {_key(pod): pod for pod in found["items"] if self._is_mine(pod)}
        for key in self._pods.keys() - mine.keys():
            self._forget(key)
        for pod in mine.values():
            self._heard(pod)
        return str(found["metadata"]["resourceVersion"])

    async def _watch(self, version: str) -> None:
        query = {"watch": "1", "resourceVersion": version, "timeoutSeconds": "300"}
        no_limit = aiohttp.ClientTimeout(total=None, sock_connect=30.0)
        async with self._session.get("/api/v1/pods", params=query, timeout=no_limit) as answer:
            answer.raise_for_status()
            try:
                await self._hear(answer.content)
            finally:
                hang_up(answer)

    async def _hear(self, content: aiohttp.StreamReader) -> None:
        async for event in _lines(content):
            if event["type"] == "ERROR":
                return
            pod = event["object"]
            if event["type"] == "DELETED":
                self._forget(_key(pod))
            elif self._is_mine(pod):
                self._heard(pod)

    def _is_mine(self, pod: Manifest) -> bool:
        return pod["spec"].get("nodeName") in self._nodes

    def _heard(self, pod: Manifest) -> None:
        self._pods[_key(pod)] = pod
        self._kick(_key(pod))

    def _forget(self, key: Key) -> None:
        pod = self._pods.pop(key, None)
        if pod is not None:
            for known in (self._chosen, self._told, self._addresses):
                known.pop(pod["metadata"]["uid"], None)

    # One pod at a time.

    def _kick(self, key: Key) -> None:
        if key in self._tasks:
            self._again.add(key)
            return
        task = self._tasks[key] = asyncio.get_running_loop().create_task(self._settle(key))
        task.add_done_callback(lambda done: self._settled(key, done))

    def _settled(self, key: Key, task: asyncio.Task[None]) -> None:
        del self._tasks[key]
        if task.cancelled():
            return
        if key in self._again:
            self._again.discard(key)
            self._kick(key)
        mistake = task.exception()
        if mistake is not None:
            self._mistakes.append(mistake)

    async def _settle(self, key: Key) -> None:
        pod = self._pods.get(key)
        if pod is None:
            return
        uid, loop = pod["metadata"]["uid"], asyncio.get_running_loop()
        behaviour = self._policy(pod)
        deleted = "deletionTimestamp" in pod["metadata"]
        if self._chosen.get(uid, ())[:2] != (behaviour, deleted):
            self._chosen[uid] = (behaviour, deleted, loop.time())
        delay = behaviour.linger_seconds if deleted else behaviour.after_seconds
        left = self._chosen[uid][2] + delay - loop.time()
        if left > 0:
            if left != float("inf"):
                loop.call_later(left, self._kick, key)
            return
        try:
            async with self._gate:
                await (self._end(pod) if deleted else self._tell(pod, behaviour))
        except (aiohttp.ClientError, TimeoutError):
            loop.call_later(_RETRY_SECONDS, self._kick, key)

    async def _tell(self, pod: Manifest, behaviour: Behaviour) -> None:
        uid = pod["metadata"]["uid"]
        if behaviour.ignored or self._told.get(uid) == behaviour:
            return
        address = self._addresses.get(uid) or self._new_address(uid)
        node = self._nodes[pod["spec"]["nodeName"]]
        status = pod_behaviours.status(pod, behaviour, address, node, played_nodes.now())
        change = {"metadata": {"uid": uid}, "status": status}
        await self._write("PATCH", f"{_path(pod)}/status", change, "application/merge-patch+json")
        self._told[uid] = behaviour

    async def _end(self, pod: Manifest) -> None:
        body = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod["metadata"]["uid"]}}
        await self._write("DELETE", _path(pod), body)

    async def _write(self, method: str, path: str, body: Manifest, kind: str = "application/json") -> None:
        headers = {"Content-Type": kind}
        async with self._session.request(method, path, data=json.dumps(body), headers=headers) as answer:
            if answer.status not in (404, 409):  # gone, or another pod of that name: the watch tells
                answer.raise_for_status()

    def _new_address(self, uid: str) -> str:
        number = next(self._numbers)
        self._addresses[uid] = f"10.{202 + number // 65536}.{number // 256 % 256}.{number % 256}"
        return self._addresses[uid]

    # Its nodes.

    async def register(self, resources: Mapping[str, Mapping[str, str]]) -> None:
        for name, address in self._nodes.items():
            await self._write("POST", "/api/v1/nodes", played_nodes.node(name, address, resources[name]))

    async def beat(self) -> None:
        """Renew the nodes' leases for ever, so that they count as alive."""
        path = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
        while True:
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                for name in self._nodes:
                    query = "?fieldManager=kubelet-stand-in&force=true"
                    await self._write(
                        "PATCH", f"{path}/{name}{query}", played_nodes.lease(name), "application/apply-patch+yaml"
                    )
            await asyncio.sleep(_HEARTBEAT_SECONDS)

    async def leave(self) -> None:
        """Take its pods and nodes away.

        Raises:
            Exception: the policy's first mistake.
        """
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # the API server may be away: then nothing is left to take away
        await asyncio.gather(*(self._end(pod) for pod in self._pods.values()), return_exceptions=True)
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            for name in self._nodes:
                await self._write("DELETE", f"/api/v1/nodes/{name}", {})
        if self._mistakes:
            raise self._mistakes[0]


@contextlib.asynccontextmanager
async def playing(access: Access, nodes: Mapping[str, Mapping[str, str]]) -> AsyncIterator[KubeletStandIn]:
    """Nodes with these further resources each, such as {"rdma/hca": "4"}, for as long as the context is open."""
    headers = {"Authorization": f"Bearer {access.token}"}
    timeout = aiohttp.ClientTimeout(total=90.0)
    connector = aiohttp.TCPConnector(limit=2 * _AT_ONCE, ssl=tls(access))
    async with aiohttp.ClientSession(access.url, headers=headers, timeout=timeout, connector=connector) as session:
        kubelet = KubeletStandIn(session, nodes)
        await kubelet.register(nodes)
        tasks = [asyncio.create_task(kubelet.follow()), asyncio.create_task(kubelet.beat())]
        try:
            yield kubelet
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await kubelet.leave()


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[Any]:
    """Events of a watch; its lines are longer than a stream's own limit."""
    rest = b""
    async for part in content.iter_any():
        *whole, rest = (rest + part).split(b"\n")
        for line in whole:
            yield json.loads(line)


def _key(pod: Manifest) -> Key:
    return pod["metadata"]["namespace"], pod["metadata"]["name"]


def _path(pod: Manifest) -> str:
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
