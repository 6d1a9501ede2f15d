"""What can go wrong with the node.

NodeError
├── NodeBusy       there is one on this machine already
└── NodeFailed     a part of it did not come up, or ended
"""

from __future__ import annotations


class NodeError(Exception):
    """Base of all errors of the node."""


class NodeBusy(NodeError):
    """There is one on this machine already; the message says whose and how to end it."""


class NodeFailed(NodeError):
    """A part of the node did not come up, or ended. The message holds the end of its log."""
