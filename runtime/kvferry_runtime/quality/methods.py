"""Which methods can be measured, by the names of the command line and of the figures."""

from __future__ import annotations

from collections.abc import Sequence

from kvferry_runtime.codec import registry
from kvferry_runtime.codec.sparse.budget import SPARSE, Budget
from kvferry_runtime.errors import SettingsError
from kvferry_runtime.quality.carriage import Dense, Exact, Sparse
from kvferry_runtime.quality.measure import Method

KEYS = "-keys"
"""Ends the name of a sparse method that sees keys alone, as in an engine that does not give its attention away."""

_SPARSE = {name + suffix: (method, not suffix) for name, method in SPARSE.items() for suffix in ("", KEYS)}
KNOWN = (*registry.HOST_METHODS, *_SPARSE)


def chosen(names: Sequence[str], exact: Exact) -> dict[str, Method]:
    """These methods, all if none is named.

    Raises:
        SettingsError: there is no such method.
    """
    if unknown := [name for name in names if name not in KNOWN]:
        raise SettingsError(f"--methods: no method {', '.join(unknown)}; there are {', '.join(KNOWN)}")
    wanted = names or KNOWN
    codecs = registry.host_codecs([name for name in wanted if name not in _SPARSE])
    found = {}
    for name in wanted:
        if name in codecs:
            found[name] = Method(Dense(codecs[name], exact), scored=False)
        else:
            method, scored = _SPARSE[name]
            found[name] = Method(Sparse(Budget(method, exact.first, exact.last)), scored)
    return found
