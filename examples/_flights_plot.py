"""The demo's picture: the log following the table through a kill, and the delays stored in the table."""

from __future__ import annotations

from pathlib import Path

import duckdb
import matplotlib as mpl
import pyarrow as pa

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

TABLE, LOG, KILL, BARS = "#1f4e79", "#e0812c", "#b3261e", "#7a9cc0"
CARRIERS_MAX = 12
Kill = tuple[int, float]


def draw(
    picture: Path,
    *,
    committed: dict[int, float],
    visible: dict[int, float],
    killed: Kill,
    flights: pa.Table,
) -> None:
    """Draw both panels.

    Args:
        picture: the PNG to write.
        committed: when each snapshot was committed, in seconds since the epoch.
        visible: when a plain consumer had first read each whole snapshot.
        killed: the snapshot after whose commit the writer was killed, and the time of the kill.
        flights: the table's rows at the end.
    """
    style = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.titlesize": 10}
    with mpl.rc_context(style | {"axes.titleweight": "bold", "axes.titlelocation": "left"}):
        figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.9), width_ratios=(3, 2), layout="constrained")
        _draw_log(left, committed, visible, killed)
        _draw_delays(right, flights)
        figure.savefig(picture, dpi=110)
        plt.close(figure)


def _draw_log(axes: Axes, committed: dict[int, float], visible: dict[int, float], killed: Kill) -> None:
    zero = min(committed.values())
    snapshot, died = killed[0], killed[1] - zero
    end = max(*committed.values(), *visible.values()) - zero
    for label, times, color, width in (("committed", committed, TABLE, 1.5), ("in the log", visible, LOG, 2.5)):
        moments = sorted((at - zero, snapshot) for snapshot, at in times.items())
        x, y = [at for at, _ in moments], [number for _, number in moments]
        axes.step([*x, end], [*y, y[-1]], where="post", color=color, lw=width, label=label, zorder=3 - width / 2)
    seen = visible[snapshot] - zero
    axes.axvspan(died, seen, color=KILL, alpha=0.08, lw=0)
    axes.axvline(died, color=KILL, lw=1, ls=":")
    axes.plot([died], [snapshot], marker="x", ms=8, mew=2, color=KILL, zorder=4)
    axes.annotate(
        f"kill -9: snapshot {snapshot}\nis committed and\nnot in the log",
        (died, snapshot),
        xytext=(-8, 10),
        textcoords="offset points",
        ha="right",
        color=KILL,
    )
    axes.annotate(
        f"a new writer publishes\nit, {seen - died:.1f} s after the kill",
        (seen, snapshot),
        xytext=(10, -26),
        textcoords="offset points",
        color="#333333",
        arrowprops={"arrowstyle": "-", "color": "#999999"},
    )
    axes.set(
        title="The log follows the table", xlabel="seconds", ylabel="snapshot", xlim=(0, end * 1.01), ylim=(0, None)
    )
    axes.legend(frameon=False, loc="upper left")


def _draw_delays(axes: Axes, flights: pa.Table) -> None:
    carriers = (
        duckdb.from_arrow(flights).aggregate("carrier, avg(dep_delay), count(*) AS flights").order("flights DESC")
    )
    rows = carriers.limit(CARRIERS_MAX).fetchall()
    rows.sort(key=lambda row: row[1])
    bars = axes.barh([row[0] for row in rows], [row[1] for row in rows], color=BARS)
    axes.bar_label(bars, [f"{row[1]:.1f}" for row in rows], padding=3, fontsize=8)
    axes.tick_params(axis="y", length=0)
    axes.set(title="What the table knows: mean delay", xlabel="minutes late at departure, by carrier")
    axes.margins(x=0.1)
