"""Generates the page views of a website as JSON records in a topic.

A few users and pages account for most of the views, users live in a region and are active during its day, and a visitor
looks at several pages. The same seed and start time generate the same views.

    python examples/pageviews.py                       200 views a second until Ctrl-C
    python examples/pageviews.py --views 100000 --rate 0    as fast as the broker takes them
"""

from __future__ import annotations

import bisect
import itertools
import json
import math
import random
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

# Region, its share of the users, and its UTC offset in hours.
REGIONS = (
    ("Asia", 0.44, 8),
    ("Europe", 0.24, 1),
    ("North America", 0.16, -6),
    ("South America", 0.08, -3),
    ("Africa", 0.06, 2),
    ("Oceania", 0.02, 10),
)


class Site:
    """A simulated website with its users and pages."""

    def __init__(self, users: int, pages: int, seed: int) -> None:
        self._random = random.Random(seed)
        self._users = _zipf(users)
        self._pages = _zipf(pages)
        shares = [share for _, share, _ in REGIONS]
        self._home = self._random.choices(range(len(REGIONS)), shares, k=users)

    def views(self, start: datetime, per_second: float) -> Iterator[dict[str, Any]]:
        """Yield views without end, in time order from ``start``."""
        now, visits = start, []
        while True:
            now += timedelta(seconds=self._random.expovariate(per_second))
            # The view is of a current visitor or a new one.
            if visits and self._random.random() < 0.7:
                number = self._random.randrange(len(visits))
            else:
                visits.append([self._visitor(now), 1 + int(self._random.expovariate(0.5))])
                number = len(visits) - 1
            user, left = visits[number]
            yield {
                "user_id": user,
                "page_id": _pick(self._random, self._pages) + 1,
                "viewtime": now.replace(tzinfo=None).isoformat(" ", "milliseconds"),
                "user_region": REGIONS[self._home[user - 1]][0],
            }
            visits[number][1] = left - 1
            if left <= 1:
                visits.pop(number)

    def _visitor(self, now: datetime) -> int:
        while True:
            user = _pick(self._random, self._users)
            hour = (now.hour + now.minute / 60 + REGIONS[self._home[user]][2]) % 24
            # Most visitors come at 18:00 local time, the fewest at 6:00.
            if self._random.random() < 0.1 + 0.9 * (0.5 + 0.5 * math.cos((hour - 18) / 24 * 2 * math.pi)):
                return user + 1


def _zipf(count: int) -> list[float]:
    return list(itertools.accumulate(1 / (rank + 3) for rank in range(count)))


def _pick(source: random.Random, weights: list[float]) -> int:
    return bisect.bisect(weights, source.random() * weights[-1])


def _make(servers: str, topic: str) -> None:
    """Create the topic unless it exists."""
    admin = AdminClient({"bootstrap.servers": servers})
    (made,) = admin.create_topics([NewTopic(topic, 1, 1)]).values()
    try:
        made.result(timeout=30)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise


def main(
    servers: Annotated[str, typer.Option(help="The brokers.")] = "localhost:9092",
    topic: Annotated[str, typer.Option(help="Where the views go.")] = "pageviews",
    views: Annotated[int | None, typer.Option(help="How many; without end if not given.", min=0)] = None,
    rate: Annotated[float, typer.Option(help="Views a second; 0 is as fast as possible.", min=0)] = 200.0,
    users: Annotated[int, typer.Option(help="How many people there are.", min=1)] = 20_000,
    pages: Annotated[int, typer.Option(help="How many pages there are.", min=1)] = 500,
    seed: Annotated[int, typer.Option(help="Whose views.")] = 1,
    start: Annotated[datetime | None, typer.Option(help="The first view's time; now without.")] = None,
) -> None:
    """Send page views to the topic."""
    _make(servers, topic)
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 5})
    begun = (start or datetime.now(UTC)).replace(tzinfo=UTC)
    clock = time.monotonic()
    all_views = Site(users, pages, seed).views(begun, rate or 200.0)
    sent = 0
    try:
        for sent, view in enumerate(itertools.islice(all_views, views), 1):
            while rate and (ahead := sent / rate - (time.monotonic() - clock)) > 0:
                producer.poll(min(ahead, 0.1))
            while True:
                try:
                    producer.produce(topic, json.dumps(view).encode())
                    break
                except BufferError:
                    producer.poll(0.1)
    except KeyboardInterrupt:
        pass
    left = producer.flush(30)
    if left:
        print(f"{left} views did not arrive at {servers}. Is the broker there? 'tablestore kafka start' starts one.")
        raise typer.Exit(1)
    print(f"{sent:,} views were sent to topic {topic!r}.")


if __name__ == "__main__":
    typer.run(main)
