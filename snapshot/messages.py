"""Parts of messages: counted nouns, ranges of snapshots, suggestions for misspelled names, and versions."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version

_CUTOFF = 0.7


def counted(count: int, noun: str) -> str:
    """Return a number and its noun: ``1 snapshot``, ``2,000 data files``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def snapshots_from_to(first: int, last: int) -> str:
    """Return ``snapshot 3`` or ``snapshots 3 to 7``."""
    return f"snapshot {first}" if first == last else f"snapshots {first} to {last}"


def version_of(distribution: str) -> str:
    """Return the version of an installed distribution; ``unknown`` if its files were copied without its metadata."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "unknown"


def did_you_mean(name: str, known: Iterable[str], *, prefix: str = "", otherwise: str = "") -> str:
    """Return ``Did you mean 'x'?`` for the known name closest to an unknown one, ignoring case, or ``otherwise``.

    Args:
        name: The unknown name.
        known: The names that exist.
        prefix: Text that users write before a known name.
        otherwise: The result if no name is close.
    """
    shown = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.lower(), shown, n=1, cutoff=_CUTOFF)
    return f"Did you mean '{prefix}{shown[near[0]]}'?" if near else otherwise
