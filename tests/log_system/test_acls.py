"""Kafka's ACLs: the rights that docs/guide/deploy.md names are enough, and none of them can be left out."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from log_system.local_kafka.owned import LocalKafka
from log_system.local_kafka.server import LOOPBACK, free_port
from snapshot.errors import TableStoreError
from tablestore import LocalTable, create_local, open_local
from tablestore.ddl import create_drop
from tests.harness.waiting import until

TOPIC: Final = "orders"
Right = tuple[ResourceType, str, AclOperation]


def rights(kind: ResourceType, name: str, *operations: AclOperation) -> list[Right]:
    """Return rights on a resource; names of groups and transactional ids are prefixes."""
    return [(kind, name, operation) for operation in operations]


READER = [
    *rights(ResourceType.TOPIC, TOPIC, AclOperation.READ),
    *rights(ResourceType.GROUP, "tablestore-", AclOperation.DESCRIBE),
]
WRITER = [
    *rights(ResourceType.TOPIC, TOPIC, AclOperation.READ, AclOperation.WRITE),
    *rights(ResourceType.GROUP, "tablestore-", AclOperation.READ),
    *rights(ResourceType.TRANSACTIONAL_ID, "tablestore-", AclOperation.WRITE),
]
OWNER = [
    *WRITER,
    *rights(ResourceType.TOPIC, TOPIC, AclOperation.CREATE, AclOperation.DELETE),
    *rights(ResourceType.GROUP, "tablestore-", AclOperation.DELETE),
]


def binding(user: str, right: Right) -> AclBinding:
    kind, name, operation = right
    pattern = ResourcePatternType.LITERAL if kind is ResourceType.TOPIC else ResourcePatternType.PREFIXED
    return AclBinding(kind, name, pattern, f"User:{user}", "*", operation, AclPermissionType.ALLOW)


class Acls:
    """A broker that lets nobody do anything without a right, except by its plain listener."""

    def __init__(self, broker: LocalKafka, address: str) -> None:
        self.address = address
        self._admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})

    def grant(self, user: str, wanted: Sequence[Right]) -> None:
        """Let a user have these rights and no others."""
        mine = AclBindingFilter(
            ResourceType.ANY, None, ResourcePatternType.ANY, f"User:{user}", None, AclOperation.ANY,
            AclPermissionType.ANY,
        )  # fmt: skip
        bindings = {binding(user, right) for right in wanted}
        held = set(self._admin.describe_acls(mine).result())
        for gone in held - bindings:
            one = AclBindingFilter(
                gone.restype, gone.name, gone.resource_pattern_type, gone.principal, gone.host, gone.operation,
                gone.permission_type,
            )  # fmt: skip
            self._admin.delete_acls([one])[one].result()
        for made in self._admin.create_acls(list(bindings - held)).values() if bindings - held else ():
            made.result()
        until(lambda: set(self._admin.describe_acls(mine).result()) == bindings)

    def client(self, user: str) -> dict[str, str]:
        """Return the client options of a user."""
        return {
            "kafka.security.protocol": "sasl_plaintext",
            "kafka.sasl.mechanism": "PLAIN",
            "kafka.sasl.username": user,
            "kafka.sasl.password": f"{user}-password",
        }


@pytest.fixture(scope="module")
def acls() -> Iterator[Acls]:
    address = f"{LOOPBACK}:{free_port()}"
    users = " ".join(f'user_{user}="{user}-password"' for user in ("owner", "writer", "reader"))
    properties = {
        "listeners": f"SASL_PLAINTEXT://{address}",
        "advertised.listeners": f"SASL_PLAINTEXT://{address}",
        "listener.security.protocol.map": "SASL_PLAINTEXT:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
            f"org.apache.kafka.common.security.plain.PlainLoginModule required {users};"
        ),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with LocalKafka(properties=properties) as broker:
        yield Acls(broker, address)


def create(acls: Acls, path: Path, consistency: str = "transactional") -> None:
    options = {
        "kafka.bootstrap.servers": acls.address, "kafka.topic": TOPIC, "bucket": 2, "log.request-timeout": "5 s",
        "log.consistency": consistency,
    }  # fmt: skip
    create_local(
        path, "id int, v string", primary_key="id", log_system="kafka", options=options,
        client_options=acls.client("owner"),
    ).close()  # fmt: skip


def drop(acls: Acls, path: Path) -> None:
    create_drop.drop_at(str(path), acls.client("owner"))


def opened(acls: Acls, path: Path, user: str) -> LocalTable:
    return open_local(path, options=acls.client(user))


def tail(acls: Acls, path: Path, user: str = "reader") -> int:
    with opened(acls, path, user) as table:
        return sum(batch.num_rows for batch in table.tail(scan_mode="earliest", follow=False))


def write(acls: Acls, path: Path, number: int) -> None:
    with opened(acls, path, "writer") as table:
        table.write([{"id": number, "v": "a"}])


def each_is_needed(acls: Acls, user: str, needed: Sequence[Right], run: Callable[[], object]) -> None:
    for right in needed:
        acls.grant(user, [each for each in needed if each != right])
        with pytest.raises(TableStoreError, match="refused this client"):
            run()
    acls.grant(user, needed)
    run()


def test_the_rights_of_the_guide_are_enough_and_all_are_needed(acls: Acls, tmp_path: Path) -> None:
    path = tmp_path / "t"
    acls.grant("owner", OWNER)
    create(acls, path)
    written = iter(range(100))
    each_is_needed(acls, "writer", WRITER, lambda: write(acls, path, next(written)))
    each_is_needed(acls, "reader", READER, lambda: tail(acls, path))
    with opened(acls, path, "writer") as table:
        table.delete("id = 0")
        table.compact()
        table.recover()
        assert table.verify().ok
    drop(acls, path)


@pytest.mark.parametrize("consistency", ["transactional", "eventual"])
def test_who_is_at_work_says_that_a_right_is_gone_and_goes_on_when_it_is_back(
    acls: Acls, tmp_path: Path, consistency: str
) -> None:
    path = tmp_path / "t"
    acls.grant("owner", OWNER)
    create(acls, path, consistency)
    for user, needed in (("writer", WRITER), ("reader", READER)):
        acls.grant(user, needed)
    written, said = iter(range(100)), set()
    with opened(acls, path, "writer") as table:
        table.write([{"id": next(written), "v": "a"}])
        for right in WRITER:
            acls.grant("writer", [each for each in WRITER if each != right])
            try:
                table.write([{"id": next(written), "v": "a"}])
            except TableStoreError as error:
                assert "refused this client" in str(error)  # noqa: PT017 - a writer that owns the log may not need it
                said.add(right)
            acls.grant("writer", WRITER)
            table.write([{"id": next(written), "v": "a"}])
        assert said >= set(rights(ResourceType.TOPIC, TOPIC, AclOperation.WRITE))
        ids = sorted(table.to_arrow()["id"].to_pylist())
        assert set(range(0, 9, 2)) <= set(ids)
        assert table.verify().ok
        with opened(acls, path, "reader") as other:
            tailed = other.tail(scan_mode="earliest", poll_seconds=0.05)
            assert next(tailed)["id"].to_pylist()[0] == 0
            acls.grant("reader", READER[1:])
            table.write([{"id": 1_000, "v": "a"}])
            with pytest.raises(TableStoreError, match="refused this client"):
                deque(tailed, maxlen=0)
            acls.grant("reader", READER)
            batches = list(other.tail(scan_mode="earliest", follow=False))
            assert set(chain.from_iterable(batch["id"].to_pylist() for batch in batches)) == {*ids, 1_000}
    drop(acls, path)


def test_an_owner_may_create_and_drop_and_is_refused_without_the_right(acls: Acls, tmp_path: Path) -> None:
    path = tmp_path / "t"
    acls.grant("owner", [right for right in OWNER if right[2] is not AclOperation.CREATE])
    with pytest.raises(TableStoreError, match="refused this client"):
        create(acls, path)
    assert not path.exists()
    acls.grant("owner", OWNER)
    create(acls, path)
    for right in (
        *rights(ResourceType.TOPIC, TOPIC, AclOperation.DELETE),
        *rights(ResourceType.GROUP, "tablestore-", AclOperation.DELETE),
    ):
        acls.grant("owner", [each for each in OWNER if each != right])
        with pytest.raises(TableStoreError, match="refused this client"):
            drop(acls, path)
    acls.grant("owner", OWNER)
    drop(acls, path)
    assert not path.exists()
