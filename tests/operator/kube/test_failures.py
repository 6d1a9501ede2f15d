from __future__ import annotations

import json

import pytest

from kvferry_operator.errors import ClusterError, Conflict, Forbidden, NotServed, Refused, Throttled, Unreachable
from kvferry_operator.kube import failures, kinds
from kvferry_operator.kube.calls import Answer, Call

CALL = Call("apply", kinds.STATEFUL_SET, "models", "tiny", "status")


def status(code: int, message: str = "", reason: str = "", name: str = "", retry_after: str = "") -> Answer:
    body = {"kind": "Status", "message": message, "reason": reason, "details": {"name": name}}
    return Answer(code, json.dumps(body).encode(), retry_after)


@pytest.mark.parametrize(
    ("answer", "expected", "says"),
    [
        (status(400, "bad"), Refused, "bad"),
        (status(413, "too large"), Refused, "too large"),
        (status(422, "spec.x: Invalid value"), Refused, "spec.x: Invalid value"),
        (status(500, "failed to create typed patch object (x): .spec.y: not declared"), Refused, ".spec.y"),
        (status(403, "exceeded quota: pods=3"), Refused, "exceeded quota"),
        (status(401, "Unauthorized"), Forbidden, "log in again"),
        (status(403, "user attempting to grant RBAC permissions not currently held: x"), Forbidden, "hands on"),
        (status(404, 'statefulsets "tiny" not found', "NotFound", "tiny"), Conflict, "gone"),
        (Answer(404, b"404 page not found\n"), NotServed, "serves no statefulsets of apps/v1; install its CRD"),
        (status(409, "object has been modified", "Conflict"), Conflict, "has been modified"),
        (status(410, "too old", "Expired"), Conflict, "too old"),
        (status(500, "etcd: leader changed"), Unreachable, "leader changed"),
        (status(503, "no leader"), Unreachable, "no leader"),
        (status(504, "timeout"), Unreachable, "504"),
        (Answer(502, b"<html>bad gateway</html>"), Unreachable, "<html>bad gateway</html>"),
        (Answer(500, b""), Unreachable, "no explanation"),
    ],
)
def test_every_refusal_has_its_error(answer: Answer, expected: type[ClusterError], says: str) -> None:
    error = failures.error(CALL, answer)
    assert type(error) is expected
    assert "apply StatefulSet/status models/tiny: " in str(error)
    assert says in str(error)


@pytest.mark.parametrize(
    ("denied", "rule", "where"),
    [
        (
            'pods "p" is forbidden: User "u" cannot get resource "pods/proxy" in API group "" in the namespace "a"',
            '{apiGroups: [""], resources: ["pods/proxy"], verbs: ["get"]}',
            "in namespace a",
        ),
        (
            'nodes is forbidden: User "u" cannot list resource "nodes" in API group "" at the cluster scope',
            '{apiGroups: [""], resources: ["nodes"], verbs: ["list"]}',
            "in the whole cluster",
        ),
        (
            'x is forbidden: User "u" cannot patch resource "y/status" in API group "g.io" in the namespace "a"',
            '{apiGroups: ["g.io"], resources: ["y/status"], verbs: ["patch"]}',
            "in namespace a",
        ),
    ],
)
def test_a_missing_permission_is_named_as_the_rule_to_add(denied: str, rule: str, where: str) -> None:
    error = failures.error(CALL, status(403, denied, "Forbidden"))
    assert isinstance(error, Forbidden)
    assert f"u lacks the rule {rule} {where}" in str(error)


@pytest.mark.parametrize(
    ("code", "retry_after", "wait"),
    [(429, "7", 7.0), (503, "2", 2.0), (429, "", 1.0), (429, "0", 1.0), (429, "soon", 1.0), (429, "9999", 60.0)],
)
def test_being_throttled_says_for_how_long(code: int, retry_after: str, wait: float) -> None:
    error = failures.error(CALL, status(code, "slow down", retry_after=retry_after))
    assert isinstance(error, Throttled)
    assert error.retry_after == wait


def test_a_long_refusal_is_cut() -> None:
    assert len(str(failures.error(CALL, status(422, "x" * 100_000)))) < 2_000


def test_a_missing_object_is_not_taken_for_a_missing_kind() -> None:
    assert failures.not_there(status(404, "not found", "NotFound", "tiny"))
    assert not failures.not_there(Answer(404, b"404 page not found\n"))


def test_an_object_that_exists_is_not_taken_for_one_that_has_changed() -> None:
    assert failures.already_exists(status(409, "exists", "AlreadyExists"))
    assert not failures.already_exists(status(409, "changed", "Conflict"))
