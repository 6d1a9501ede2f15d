"""Environment variables that the operator renders and the runtime reads: one constant each, and who reads it."""

CONFIG = "KVFERRY_CONFIG"
"""Path of the JSON file with the `RuntimeConfig` (engine, sidecar)."""

ROLE = "KVFERRY_ROLE"
"""prefill | decode | aggregated (engine, sidecar)."""

RING_DIR = "KVFERRY_RING_DIR"
"""Folder shared by engine and sidecar: the ring and its control socket (engine, sidecar)."""

MODEL_DIR = "KVFERRY_MODEL_DIR"
"""Folder in which models are mounted or cached (engine)."""

KEY_FILE = "KVFERRY_KEY_FILE"
"""File that holds the model's shared key (sidecar; engine with pipeline stages)."""

POD_IP = "KVFERRY_POD_IP"
"""Address to listen on and to be reached at (engine, sidecar, router)."""

POD_NAME = "KVFERRY_POD_NAME"
"""Name of the pod, for logs and the group id (engine, sidecar, router)."""

GROUP_INDEX = "KVFERRY_GROUP_INDEX"
"""Which of its role's groups the pod belongs to, from 0; with pipeline stages (engine; others' values refer to it)."""

STAGE_HOSTS = "KVFERRY_STAGE_HOSTS"
"""Host names of the pods of this group by stage, with commas between them; only with pipeline stages (engine)."""

ENDPOINTS = "KVFERRY_ENDPOINTS"
"""Where the router finds its groups: `file:///path` or `kubernetes://namespace/model` (router)."""

LOG_FORMAT = "KVFERRY_LOG_FORMAT"
"""json | text (all)."""

LOG_LEVEL = "KVFERRY_LOG_LEVEL"
"""debug | info | warning | error (all)."""

TRACE = "KVFERRY_TRACE"
"""File into which a timeline of the transfers is written at the end (engine, sidecar)."""
