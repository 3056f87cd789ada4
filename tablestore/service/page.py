"""The service's pages: plain HTML with one picture, which load nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from itertools import islice
from urllib.parse import quote

from snapshot.records import Snapshot
from tablestore.context import TableContext
from tablestore.service.watcher import TableState

SNAPSHOTS_SHOWN = 50
_WIDTH, _HEIGHT = 640, 160
_STYLE = """
:root { color-scheme: light dark; --committed: #888; --published: #2a7; --bad: #c33; }
body { font: 14px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; margin: 1rem 0; }
th, td { text-align: left; padding: .25rem .75rem .25rem 0; border-bottom: 1px solid #8884; vertical-align: top; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
.bad { color: var(--bad); }
svg { max-width: 100%; height: auto; }
.committed { stroke: var(--committed); fill: none; stroke-width: 1.5; }
.published { stroke: var(--published); fill: none; stroke-width: 1.5; }
"""


def overview(states: Sequence[TableState], token: str = "") -> str:
    """Return the page of all tables; ``token`` is passed on in links."""
    given = f"&token={quote(token)}" if token else ""
    rows = [
        [
            f'<a href="/table?path={quote(state.path, safe="")}{given}">{escape(state.path)}</a>',
            _number(state.newest),
            _number(state.published),
            _behind(state.behind.snapshots, state.behind.seconds),
            _behind(state.newest - state.merged, state.merged_age),
            _verified(state),
            f'<span class="bad">{escape(state.error)}</span>' if state.error else "ok",
        ]
        for state in states
    ]
    heads = ("table", "snapshot", "published", "log behind", "compaction behind", "verified", "state")
    body = _table(heads, rows) if rows else "<p>No tables yet.</p>"
    return _page("Tables", body)


def detail(state: TableState, table: TableContext) -> str:
    """Return the page of one table.

    Raises:
        TableStoreError: the table cannot be read.
    """
    newest = list(islice(table.files.snapshots(), SNAPSHOTS_SHOWN))
    log = table.options.log
    facts = [
        ["primary key", escape(", ".join(table.spec.primary_key) or "none: writes append")],
        ["partitions", escape(", ".join(table.spec.partition_by) or "none")],
        ["log", escape(f"Kafka topic {log.kafka.topic}, {log.format}" if log else "the table's files")],
        ["log behind", _behind(state.behind.snapshots, state.behind.seconds)],
        ["Delta readers outside see", f"snapshot {state.merged:,}"],
        ["verified", _verified(state)],
        ["state", f'<span class="bad">{escape(state.error)}</span>' if state.error else "ok"],
    ]
    columns = [
        [escape(field.name), escape(str(field.type)), "" if field.nullable else "NOT NULL"]
        for field in table.spec.arrow
    ]
    consumers = [[escape(name), _behind(behind.snapshots, behind.seconds)] for name, behind in state.consumers.items()]
    sections = [
        _table((), facts),
        "<h2>Committed and published</h2>",
        picture(newest, state.published),
        *(["<h2>Consumers</h2>", _table(("consumer", "behind"), consumers)] if consumers else []),
        "<h2>Snapshots</h2>",
        _table(("snapshot", "operation", "changes", "committed (UTC)", "in the log"), _rows(newest, state.published)),
        "<h2>Columns</h2>",
        _table(("column", "type", ""), columns),
    ]
    return _page(state.path, "".join(sections))


def picture(newest: Sequence[Snapshot], published: int) -> str:
    """Return the curves of committed and published snapshots over time as SVG.

    Args:
        newest: the newest snapshots, newest first.
        published: the newest snapshot in the log.
    """
    snapshots = list(reversed(newest))
    if len(snapshots) < 2:
        return "<p>Not enough snapshots for a picture yet.</p>"
    first, last = snapshots[0], snapshots[-1]
    span = max(1, last.timestamp_ms - first.timestamp_ms)

    def points(shown: Iterable[Snapshot]) -> str:
        return " ".join(
            f"{10 + (s.timestamp_ms - first.timestamp_ms) / span * (_WIDTH - 20):.1f},"
            f"{_HEIGHT - 10 - (s.id - first.id) / max(1, last.id - first.id) * (_HEIGHT - 20):.1f}"
            for s in shown
        )

    label = f"Snapshots {first.id} to {last.id}; {min(published, last.id)} is the newest in the log."
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img"><title>{escape(label)}</title>'
        f'<polyline class="committed" points="{points(snapshots)}"/>'
        f'<polyline class="published" points="{points(s for s in snapshots if s.id <= published)}"/></svg>'
        f"<p>{escape(label)}</p>"
    )


def _rows(newest: Iterable[Snapshot], published: int) -> list[list[str]]:
    return [
        [
            _number(s.id),
            escape(s.operation),
            _number(s.rows),
            f"{s.time:%Y-%m-%d %H:%M:%S}",
            "yes" if s.id <= published else '<span class="bad">not yet</span>',
        ]
        for s in newest
    ]


def _behind(snapshots: int, seconds: float) -> str:
    return f'<span class="bad">{snapshots:,} ({seconds:,.0f} s)</span>' if snapshots else "0"


def _verified(state: TableState) -> str:
    if state.verified is None:
        return "never"
    if state.differences:
        return f'<span class="bad">{state.differences:,} differences up to snapshot {state.verified:,}</span>'
    return f"up to snapshot {state.verified:,}"


def _number(value: int) -> str:
    return f"{value:,}"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = f"<tr>{''.join(f'<th>{escape(each)}</th>' for each in heads)}</tr>" if heads else ""
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table>{head}{body}</table>"


def _page(title: str, body: str) -> str:
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)} - tablestore</title>'
        f'<meta http-equiv="refresh" content="5"><style>{_STYLE}</style></head>'
        f"<body><h1>{escape(title)}</h1>{body}</body></html>"
    )
