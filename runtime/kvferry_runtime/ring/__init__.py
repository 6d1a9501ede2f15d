"""Memory that engine and sidecar share: the slots, who owns each of them, and the socket on which they change hands."""
