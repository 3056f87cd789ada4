"""Tables of SQL beside a store table, such as ``t$snapshots`` and ``t$audit_log``: its metadata and its changes."""
