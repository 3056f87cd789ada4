"""Lookup of the Spark session's time zone within a task."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path

from pyspark import TaskContext

_PROPERTY = "spark.sql.session.timeZone"


def session_zone() -> str:
    """Return the session's time zone, which applies to timestamps without a time zone.

    Spark passes a session's explicitly set configuration to its tasks. If the time zone is not set, it is that of the
    machine.
    """
    context = TaskContext.get()
    name = context.getLocalProperty(_PROPERTY) if context is not None else None
    return name or os.environ.get("TZ") or _machine_zone()


def _machine_zone() -> str:
    place = Path("/etc/localtime")
    if place.is_symlink():
        _, found, name = str(place.resolve()).partition("zoneinfo/")
        if found:
            return name
    offset = datetime.now().astimezone().utcoffset()
    return "UTC" if not offset else datetime.now().astimezone().strftime("%z")[:3] + ":00"
