"""The service's pages: HTML with one picture and one small script, which load nothing from elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import quote

from log_system.report import advice
from snapshot.messages import counted
from snapshot.python_values import printable
from snapshot.records import Snapshot
from snapshot.row_kind import CHANGE_TYPE
from snapshot.schema.system_columns import COMMIT_TIMESTAMP, COMMIT_VERSION
from tablestore.context import TableContext
from tablestore.service.chart import curves
from tablestore.service.log_tail import ROWS_SHOWN, NewestChanges, key_texts
from tablestore.service.watcher import Behind, TableState

SNAPSHOTS_SHOWN = 50
SNAPSHOT = ("snapshot", "number")
_TAIL_SHOWN = 12
_POINTS_MAX = 100
"""The picture shows up to this many snapshots: the newest, or some of all."""
_CELL_MAX = 200
_STATIC = Path(__file__).parent / "static"
SCRIPT = (_STATIC / "page.js").read_bytes()
_STYLE = (_STATIC / "page.css").read_text(encoding="utf-8")
_KINDS = {"insert": "good", "update_postimage": "plain", "update_preimage": "plain", "delete": "bad"}
Head = str | tuple[str, str]
"""The heading of a column, and how its cells are set: ``number``, ``wide`` (long text), ``nowrap``."""
_OPERATION_WORDS = {"update_preimage": "before update", "update_postimage": "update"}


def overview(states: Sequence[TableState], unlisted: str) -> str:
    """Return the page of all tables; ``unlisted`` says why there may be more."""
    rows = [
        [
            f'<a href="{_link(state.path)}">{escape(_name(state.path))}</a>'
            f'<br><span class="path mono">{escape(state.path)}</span>{_error(state)}',
            '<span class="badge bad">error</span>' if _error(state) else '<span class="badge good">ok</span>',
            f"{state.newest:,}",
            f"{state.published:,}" if state.has_log else "-",
            _behind(state.behind) if state.has_log else "-",
            _behind(Behind(state.newest - state.merged, state.merged_age), alarming=False),
            _verified(state),
        ]
        for state in states
    ]
    heads = (
        ("table", "wide"),
        "state",
        SNAPSHOT,
        ("in the log", "number"),
        "log behind",
        "compaction behind",
        "log = table",
    )
    wrong = [state for state in states if state.error or state.verify.error or state.verify.count]
    tiles = [
        _tile("tables", f"{len(states):,}"),
        _tile("with errors or differences", f"{len(wrong):,}", bad=bool(wrong)),
        _tile("snapshots not in a log yet", f"{sum(state.behind.snapshots for state in states):,}"),
    ]
    body = _card("Tables", _table(heads, rows) if rows else "<p>No tables yet.</p>")
    alert = f'<div class="alert bad">{escape(unlisted)}</div>' if unlisted else ""
    return _page("Tables", f'<h1>Tables</h1><p class="path"></p>{alert}<div class="tiles">{"".join(tiles)}</div>{body}')


def detail(state: TableState, table: TableContext, *, before: int | None = None, whole: bool = False) -> str:
    """Return the page of one table.

    Args:
        state: what the watcher has seen.
        table: the table.
        before: list only snapshots before this one; None for the newest.
        whole: draw all snapshots, some of many, not only the newest.

    Raises:
        TableStoreError: the table cannot be read.
    """
    newest, oldest = table.files.latest(), table.files.oldest(fresh=False)
    last = newest if before is None else min(newest, before - 1)
    listed = list(islice(table.files.snapshots(last), SNAPSHOTS_SHOWN))
    other = "newest" if whole else "all"
    switch = f'<a href="{_link(state.path)}{"" if whole else "&amp;range=all"}">show {other} snapshots</a>'
    changes = _link(state.path, "log")
    sections = [
        _alerts(state),
        _tiles(state, table),
        _differences(state),
        _card(
            "Committed and in the log" if state.has_log else "Committed",
            curves(_drawn(table, newest, oldest, whole=whole), state.curve, state.published if state.has_log else None),
            switch,
        ),
        _consumers(state),
        _card(
            _tail_heading(state),
            f'<div data-load="{changes}&amp;rows={_TAIL_SHOWN}"><p>Reading the changes ...</p></div>',
            f'<a href="{changes}">by key, and older</a>',
        ),
        _card("Snapshots", _history(state, listed, oldest), f"{oldest:,} to {newest:,}"),
        _card("Columns", _columns(table)),
    ]
    return _page(_name(state.path), f"{_title(state.path)}{''.join(sections)}")


def log_page(state: TableState, table: TableContext, tail: NewestChanges, key: str, rows: int) -> str:
    """Return the page of the newest changes in a table's log, at most ``rows`` of them."""
    note = f"snapshots {tail.first:,} to {tail.last:,}" if tail.first <= tail.last else "no snapshots"
    form = ""
    if table.spec.primary_key:
        name = escape(", ".join(table.spec.primary_key))
        form = (
            f'<form><input type="hidden" name="path" value="{escape(state.path)}">'
            f'<input name="key" value="{escape(key)}" placeholder="{name}" aria-label="primary key: {name}">'
            f"<button>find</button></form>"
        )
    body = f"{_changes(state, table, tail, key, rows)}{_older(state, tail, key)}"
    heading = _tail_heading(state) + (f" of key {escape(key)}" if key else "")
    back = f'<p><a href="{_link(state.path)}">&larr; the table</a></p>'
    return _page(_name(state.path), f"{_title(state.path)}{back}{_card(heading, body, form + note)}")


def failed(path: str, error: str) -> str:
    """Return the page that says why something cannot be shown."""
    return _page(_name(path), f'{_title(path)}<div class="alert bad" data-part>{escape(error)}</div>')


def _drawn(table: TableContext, newest: int, oldest: int, *, whole: bool) -> list[Snapshot]:
    """Return the snapshots of the picture, newest first; the work does not depend on how many there are."""
    first = oldest if whole else max(oldest, newest - _POINTS_MAX + 1)
    count = min(_POINTS_MAX, newest - first + 1)
    if count < 2:
        return []
    ids = {first + round(n * (newest - first) / (count - 1)) for n in range(count)}
    # This reads one file each; the first of them may have expired meanwhile.
    return [found for each in sorted(ids, reverse=True) for found in islice(table.files.snapshots(each), 1)]


def _alerts(state: TableState) -> str:
    found = [state.error] if state.error else []
    if state.verify.error:
        found.append(f"Log and table are not compared: {state.verify.error}")
    return "".join(f'<div class="alert bad">{escape(text)}</div>' for text in found)


def _tiles(state: TableState, table: TableContext) -> str:
    log = table.options.log
    where = f"Kafka topic {log.kafka.topic}, {log.format}" if log else "streams read the files"
    lag, merged = state.behind, state.newest - state.merged
    age = f", for {_seconds(state.merged_age)}" if merged else ""
    verify = state.verify
    if log is None:
        verified = _tile("log = table", "-", "no log to compare")
    elif verify.count:
        verified = _tile("differences", f"{verify.count:,}", f"compared up to {verify.snapshot or 0:,}", bad=True)
    else:
        at = "never compared" if verify.snapshot is None else f"snapshot {verify.snapshot:,}"
        whole = f"whole log {_ago(verify.whole_ms)}" if verify.whole_ms else "the whole log not yet"
        if verify.whole_snapshot is not None:
            whole = f"whole log being compared, at {verify.whole_snapshot:,}"
        verified = _tile("log = table, up to", at, whole)
    tiles = [
        _tile("newest snapshot", f"{state.newest:,}", where),
        _tile(
            "log behind",
            f"{lag.snapshots:,}" if log else "-",
            f"for {_seconds(lag.seconds)}" if lag.snapshots else "all is in the log" if log else "no log",
            bad=lag.snapshots > 0,
        ),
        verified,
        _tile("Delta readers outside see", f"snapshot {state.merged:,}", f"{merged:,} behind{age}"),
        _tile(
            "primary key",
            ", ".join(table.spec.primary_key) or "none",
            f"partitions: {', '.join(table.spec.partition_by) or 'none'}",
        ),
    ]
    return f'<div class="tiles">{"".join(tiles)}</div>'


def _differences(state: TableState) -> str:
    verify = state.verify
    if not verify.count:
        return ""
    rows = [
        [
            f'<span class="badge bad">{escape(each.kind)}</span>',
            *("" if value is None else f"{value:,}" for value in (each.snapshot, each.partition, each.offset)),
            f"<code>{escape(each.key or '')}</code>",
            escape(each.text),
        ]
        for each in verify.differences
    ]
    shown = len(verify.differences)
    more = f"<p>{verify.count - shown:,} more are not shown.</p>" if verify.count > shown else ""
    steps = "".join(f'<p class="text">{escape(text)}</p>' for text in advice(verify.differences))
    what = (
        f'<p class="text">Run <code>tablestore repair {escape(state.path)}</code>: it repairs the index, the register '
        f"and the end of the log. What it cannot repair is explained here.</p>{steps}"
    )
    heads = ("what", SNAPSHOT, ("partition", "number"), ("offset", "number"), "key", ("difference", "wide"))
    return _card("Differences between log and table", what + _table(heads, rows) + more, f"{verify.count:,}")


def _consumers(state: TableState) -> str:
    if not state.consumers:
        return ""
    rows = [[escape(name), _behind(behind)] for name, behind in sorted(state.consumers.items())]
    return _card("Consumers", _table(("consumer", "behind"), rows))


def _tail_heading(state: TableState) -> str:
    return "Log tail" if state.has_log else "Changes"


def _history(state: TableState, listed: Sequence[Snapshot], oldest: int) -> str:
    rows = [
        [
            f"{each.id:,}",
            escape(each.operation),
            f"{each.rows:,}",
            f'{each.time:%Y-%m-%d %H:%M:%S} <span class="path">{_ago(each.timestamp_ms)}</span>',
            *([_in_log(each.id <= state.published)] if state.has_log else []),
        ]
        for each in listed
    ]
    log = ("in the log",) if state.has_log else ()
    heads = (SNAPSHOT, "operation", ("changes", "number"), ("committed (UTC)", "nowrap"), *log)
    links = []
    if listed and listed[0].id < state.newest:
        links.append(f'<a href="{_link(state.path)}">newest</a>')
    if listed and listed[-1].id > oldest:
        links.append(f'<a href="{_link(state.path)}&amp;before={listed[-1].id}">older</a>')
    pages = f'<div class="pages">{"".join(links)}</div>' if links else ""
    return _table(heads, rows) + pages


def _in_log(published: bool) -> str:
    return '<span class="badge good">yes</span>' if published else '<span class="badge bad">not yet</span>'


def _changes(state: TableState, table: TableContext, tail: NewestChanges, key: str, rows_max: int) -> str:
    columns = [name for name in tail.rows.schema.names if name not in (CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP)]
    rows = tail.rows.slice(0, rows_max)
    if not rows.num_rows:
        return "<p data-part>No changes here.</p>"
    keys = key_texts(rows, table.spec.primary_key).to_pylist() if table.spec.primary_key else []
    cells = []
    for number, values in enumerate(zip(*map(printable, rows.columns), strict=True)):
        row: dict[str, Any] = dict(zip(rows.schema.names, values, strict=True))
        kind = row[CHANGE_TYPE]
        word = f'<span class="badge {_KINDS.get(kind, "plain")}">{escape(_OPERATION_WORDS.get(kind, kind))}</span>'
        texts = [f"<code>{escape(_short(row[name]))}</code>" for name in columns]
        if keys:
            at = columns.index(table.spec.primary_key[0])
            link = f"{_link(state.path, 'log')}&amp;key={quote(str(keys[number]), safe='')}"
            texts[at] = f'<a href="{link}">{texts[at]}</a>'
        cells.append([f"{row[COMMIT_VERSION]:,}", word, *texts])
    cut = ""
    if tail.cut:
        read = counted(tail.rows.num_rows, "change")
        cut = f"<p data-part>Snapshot {tail.last:,} was read in part: its first {read}.</p>"
    found = f"<p data-part>The newest {ROWS_SHOWN} of {tail.rows.num_rows:,} changes.</p>"
    shown = found if key and tail.rows.num_rows > ROWS_SHOWN else ""
    return f"{cut}{shown}<div data-part>{_table((SNAPSHOT, 'change', *columns), cells)}</div>"


def _older(state: TableState, tail: NewestChanges, key: str) -> str:
    if tail.first <= tail.oldest:
        return ""
    given = f"&amp;key={quote(key, safe='')}" if key else ""
    return f'<div class="pages"><a href="{_link(state.path, "log")}{given}&amp;before={tail.first}">older</a></div>'


def _columns(table: TableContext) -> str:
    keys = set(table.spec.primary_key)
    rows = [
        [
            f"<code>{escape(field.name)}</code>",
            escape(str(field.type)),
            "primary key" if field.name in keys else "" if field.nullable else "NOT NULL",
        ]
        for field in table.spec.arrow
    ]
    return _table(("column", "type", ""), rows)


def _behind(behind: Behind, *, alarming: bool = True) -> str:
    if not behind.snapshots:
        return '<span class="badge good">0</span>'
    tone = "warn" if alarming else "plain"
    return f'<span class="badge {tone}">{counted(behind.snapshots, "snapshot")}, {_seconds(behind.seconds)}</span>'


def _verified(state: TableState) -> str:
    verify = state.verify
    if not state.has_log:
        return "no log"
    if verify.count:
        return f'<span class="badge bad">{counted(verify.count, "difference")}</span>'
    if verify.snapshot is None:
        return '<span class="badge plain">never compared</span>'
    return f'<span class="badge good">up to {verify.snapshot:,}</span>'


def _error(state: TableState) -> str:
    found = state.error or state.verify.error
    return f'<div class="error">{escape(found)}</div>' if found else ""


def _tile(name: str, value: str, note: str = "", *, bad: bool = False) -> str:
    shown = f'<span class="bad">&nbsp;{escape(value)}&nbsp;</span>' if bad else escape(value)
    below = f'<div class="note">{escape(note)}</div>' if note else ""
    return f'<div class="tile"><div class="name">{escape(name)}</div><div class="value">{shown}</div>{below}</div>'


def _card(heading: str, body: str, more: str = "") -> str:
    head = f'<div class="head"><h2>{heading}</h2>{f"<span class=more>{more}</span>" if more else ""}</div>'
    return f'<section class="card">{head}{body}</section>'


def _table(heads: Sequence[Head], rows: Iterable[Sequence[str]]) -> str:
    named = [(each, "") if isinstance(each, str) else each for each in heads]
    kinds = [f' class="{kind}"' if kind else "" for _, kind in named]
    head = "".join(f"<th{kind}>{escape(name)}</th>" for kind, (name, _) in zip(kinds, named, strict=True))
    body = "".join(
        f"<tr>{''.join(f'<td{kind}>{cell}</td>' for kind, cell in zip(kinds, row, strict=True))}</tr>" for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _short(value: object) -> str:
    text = "NULL" if value is None else str(value)
    return text if len(text) <= _CELL_MAX else f"{text[: _CELL_MAX - 3]}..."


def _seconds(seconds: float) -> str:
    for unit, name in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:,.0f} {name}"
    return f"{seconds:,.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


def _ago(at_ms: float) -> str:
    return f"{_seconds(max(0.0, time.time() - at_ms / 1000))} ago"


def _name(path: str) -> str:
    return path.rpartition("/")[2] or path


def _title(path: str) -> str:
    return f'<h1>{escape(_name(path))}</h1><p class="path mono">{escape(path)}</p>'


def _link(path: str, page: str = "table") -> str:
    return f"/{page}?path={quote(path, safe='')}"


def _page(title: str, body: str) -> str:
    now = datetime.now(UTC)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)} - tablestore</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f'<style>{_STYLE}</style></head><body><header><a href="/"><b>tablestore</b></a>'
        f'<span class="where">publisher service</span><span id="live">as of {now:%Y-%m-%d %H:%M:%S} UTC</span></header>'
        f'<main>{body}</main><script src="/page.js" defer></script></body></html>'
    )
