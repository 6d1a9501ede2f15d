"""Addresses and names of the node. They are fixed, so that an API server can be told them before the node exists."""

from __future__ import annotations

NAME = "kvferry-node"
"""Of the node, of its cgroup and of the lock that lets one of them exist on a machine."""

LINK = "kvferry0"
"""This machine's end of the cable to the node."""

HOST = "10.197.84.1"
NODE = "10.197.84.2"
PREFIX = 30
PODS = "10.197.85.0/24"
"""This machine reaches pods directly, and pods reach `HOST`. Nothing is forwarded further."""
