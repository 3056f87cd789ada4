"""What a table's author can make the process do that opens the table: nothing but what that process allows."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import pytest
from confluent_kafka import cimpl
from pyspark.sql.types import StructType
from typer.testing import CliRunner

from log_system.index import IndexEntry, LogIndex, OffsetRange
from log_system.kafka.client.access_policy import DEFAULT, VARIABLE, Allowed, merge_runtime
from log_system.kafka.client.client_options import ACCESS, JAVA_ONLY, OWNED, Access
from log_system.kafka.client.secrets import Secret, is_secret_key, resolve
from snapshot.errors import InvalidInputError
from snapshot.schema.spec import TableSpec
from snapshot.storage import Storage
from snapshot.store.table_files import TableFiles
from tablestore.cli import app
from tablestore.context import TableContext
from tablestore.ddl import create_drop
from tablestore.ddl.alter import alter
from tablestore.ddl.table_definition import TableDefinition
from tablestore.local.table import open_local
from tablestore.options.read_options import parse_read_options
from tablestore.sql import Catalog

SERVERS = "broker:9092"
SCHEMA = StructType().add("id", "long").add("v", "string")
#: Of the opener; nothing of it may reach a client unless the opener says so.
STOLEN = "AKIA-swordfish"


def given(**options: str) -> dict[str, str]:
    """Give stored options of a table; ``sasl__password`` stands for ``kafka.sasl.password``."""
    named = {f"kafka.{name.replace('__', '.')}": value for name, value in options.items()}
    return {"log.system": "kafka", "kafka.bootstrap.servers": SERVERS, "kafka.topic": "t", **named}


def crafted(path: Path, options: Mapping[str, str]) -> Path:
    """Make a table as an author makes it who checks nothing, or an older version of the store did; needs no broker."""
    storage = Storage.at(str(path))
    path.mkdir(exist_ok=True)
    LogIndex(storage).put(IndexEntry(0, 0, "create", (OffsetRange(0, 0, 0, 0),)))
    TableFiles.create(storage, TableSpec("0" * 32, SCHEMA.json(), (), (), {"bucket": "1", **options}))
    return path


def client_of(path: Path, **how: Any) -> dict[str, str]:
    """Open a table and give what its client would tell librdkafka."""
    return resolve(TableContext.open(str(path), **how).log.settings.client.config)


def properties_of_librdkafka() -> set[str]:
    """Ask the librdkafka that is installed for the names of all of its properties."""
    library, c = ctypes.CDLL(cimpl.__file__), ctypes.CDLL(None)
    text, size = ctypes.c_char_p(), ctypes.c_size_t()
    c.open_memstream.restype = ctypes.c_void_p
    c.fclose.argtypes = library.rd_kafka_conf_properties_show.argtypes = [ctypes.c_void_p]
    stream = c.open_memstream(ctypes.byref(text), ctypes.byref(size))
    library.rd_kafka_conf_properties_show(stream)
    c.fclose(stream)
    assert text.value is not None
    rows = [line.split("|") for line in text.value.decode().splitlines() if line.count("|") > 3]
    return {row[0].strip() for row in rows if row[1].strip() in ("*", "C", "P")}


def test_every_property_of_librdkafka_says_who_may_give_it() -> None:
    pointers = {
        "default_topic_conf",
        "msg_order_cmp",
        "ssl_ca",
        "ssl_certificate",
        "ssl_key",
        "ssl_engine_callback_data",
    }
    names = {name for name in properties_of_librdkafka() if not name.endswith("_cb")} - pointers

    assert len(names) > 150
    assert names - ACCESS.keys() - OWNED.keys() - JAVA_ONLY.keys() == set()
    assert ACCESS.keys() - names == set()
    assert ACCESS.keys() & (OWNED.keys() | JAVA_ONLY.keys()) == set()
    assert {name for name in ACCESS if is_secret_key(name)} == {n for n, a in ACCESS.items() if a is Access.CREDENTIAL}


@pytest.mark.parametrize("name", sorted(name for name, access in ACCESS.items() if access is Access.PROGRAM))
def test_what_runs_code_is_never_taken_from_a_table_or_a_definition(name: str, tmp_path: Path) -> None:
    path = crafted(tmp_path / "t", given(**{name: "/tmp/evil.so"}))
    catalog = Catalog(no_spark, tmp_path / "w", allow_references=["file:/tmp/*"])

    for refused in (
        lambda: open_local(path, allow_references=["file:/tmp/*", "env:*"]),
        lambda: create(tmp_path / "u", **{name: "/tmp/evil.so"}),
        lambda: catalog.sql(f"CREATE TABLE t (a INT) WITH ({kafka_table(f'properties.{name}', '/tmp/evil.so')})"),
        lambda: catalog.sql(f"CREATE TEMPORARY TABLE t (a INT) WITH ({kafka_table(f'properties.{name}', '/x')})"),
        lambda: catalog.sql(f"CREATE TABLE t (a INT) WITH ({kafka_table(f'Properties.{name.title()}', '/x')})"),
    ):
        with pytest.raises(InvalidInputError, match="never taken from what is stored") as caught:
            refused()
        assert name in str(caught.value)
        assert "options={" in str(caught.value)
    assert not (tmp_path / "u").exists()
    assert catalog.tables() == []
    # The program that opens may give it; an empty value leaves the stored one out.
    assert client_of(path, runtime={f"kafka.{name}": "own"})[name] == "own"
    assert name not in client_of(path, runtime={f"kafka.{name}": ""})


def test_no_shell_command_and_no_library_of_a_table_is_run(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    path = crafted(
        tmp_path / "t",
        given(security__protocol="sasl_plaintext", sasl__mechanism="GSSAPI", sasl__kerberos__kinit__cmd=f"touch {ran}"),
    )
    done = CliRunner().invoke(app, ["tail", str(path), "--no-follow"])

    assert done.exit_code == 1
    assert "runs a shell command" in done.output
    assert not ran.exists()


def create(path: Path, **options: str) -> None:
    create_drop.create(TableDefinition(str(path), SCHEMA, options=given(**options)))


def kafka_table(name: str, value: str) -> str:
    known = f"'connector' = 'kafka', 'topic' = 't', 'format' = 'json', '{name}' = '{value}'"
    return known + f", 'properties.bootstrap.servers' = '{SERVERS}'"


def no_spark() -> NoReturn:
    pytest.fail("opening a table refuses before Spark is needed")


def test_the_openers_environment_and_files_are_not_the_authors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", STOLEN)
    monkeypatch.setenv("KAFKA_PASSWORD", "meant for it")
    file = tmp_path / "id_rsa"
    file.write_text(STOLEN)
    for number, (name, value) in enumerate(
        [
            ("client__id", "env:AWS_SECRET_ACCESS_KEY"),
            ("client__id", "env:KAFKA_PASSWORD"),
            ("bootstrap__servers", "env:KAFKA_PASSWORD"),
            ("sasl__username", "env:AWS_SECRET_ACCESS_KEY"),
            ("sasl__password", "env:AWS_SECRET_ACCESS_KEY"),
            ("sasl__password", f"file:{file}"),
            ("sasl__password", f"file://{file}"),
            ("ssl__key__pem", "file:/run/secrets/kafka/../../../etc/shadow"),
            ("ssl__key__location", "/root/.ssh/id_rsa"),
            ("ssl__ca__location", str(file)),
        ]
    ):
        path = crafted(tmp_path / str(number), given(**{name: value}))
        with pytest.raises(InvalidInputError) as caught:
            open_local(path)
        message = str(caught.value)
        assert f"kafka.{name.replace('__', '.')}" in message
        assert STOLEN not in message
        assert "TableStore.open" in message
    path = crafted(tmp_path / "meant", given(sasl__password="env:KAFKA_PASSWORD"))
    assert client_of(path)["sasl.password"] == "meant for it"


def test_what_the_program_allows_or_gives_is_resolved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_PASSWORD", "mine")
    file = tmp_path / "ca.pem"
    file.write_text("certificate")
    path = crafted(tmp_path / "t", given(sasl__password="env:MY_PASSWORD", ssl__ca__location=str(file)))
    entries = ["env:MY_*", f"file:{tmp_path}/*.pem"]

    expected = {"bootstrap.servers": SERVERS, "sasl.password": "mine", "ssl.ca.location": str(file)}
    assert client_of(path, allowed=Allowed.of(entries)) == expected
    own = {
        "kafka.sasl.password": "env:MY_PASSWORD",
        "kafka.ssl.ca.location": str(file),
        "kafka.client.id": f"file:{file}",
    }
    assert client_of(path, runtime=own, allowed=Allowed(())) == expected | {"client.id": "certificate"}
    monkeypatch.setenv(VARIABLE, ",".join(entries))
    assert client_of(path) == expected
    monkeypatch.setenv(VARIABLE, "")
    with pytest.raises(InvalidInputError, match="allowed: nothing"):
        client_of(path)


@pytest.mark.parametrize(
    ("entry", "reference", "covered"),
    [
        ("env:KAFKA_*", "env:KAFKA_PASSWORD", True),
        ("env:KAFKA_*", "env:MY_KAFKA_PASSWORD", False),
        ("env:A", "env:AB", False),
        ("env:A", "env:a", False),
        ("file:/etc/kafka/*", "file:/etc/kafka/key.pem", True),
        ("file:/etc/kafka/*", "file:///etc/kafka/key.pem", True),
        ("file:/etc/kafka/*", "file:/etc/kafka/deep/key.pem", False),
        ("file:/etc/kafka/*", "file:/etc/kafka/../shadow", False),
        ("file:/etc/*/key.pem", "file:/etc/../key.pem", False),
        ("file:/etc/kafka/*", "file:etc/kafka/key.pem", False),
        ("file:/run/secrets/kafka*", "file:/run/secrets/kubernetes.io", False),
        ("env:*", "file:/etc/shadow", False),
        ("class:my.parts.*", "class:my.parts.ByUser", True),
        ("class:my.parts.*", "class:os.system", False),
        ("env:P@broker:9092", "env:P", True),
        ("env:P@evil:9092", "env:P", False),
        ("env:P@*:9092", "env:P", True),
        ("env:P@evil:9092;broker:9092", "env:P", True),
    ],
)
def test_entries_cover_what_they_say(entry: str, reference: str, covered: bool) -> None:
    assert Allowed.of([entry]).covers(reference, SERVERS) is covered


def test_a_credential_bound_to_brokers_goes_to_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("P", "secret")
    allowed = Allowed.of(["env:P@broker1:9092;broker2:9092"])
    for servers, sent in (
        ("broker1:9092", True),
        ("SASL_SSL://broker2:9092, broker1:9092", True),
        ("broker1:9092,evil:9092", False),
        ("broker1:9092.evil:9092", False),
        ("", False),
    ):
        stored = {"bootstrap.servers": servers, "sasl.password": "env:P"}
        if sent:
            assert resolve(merge_runtime(stored, {}, allowed))["sasl.password"] == "secret"
            continue
        with pytest.raises(InvalidInputError, match=r"kafka\.sasl\.password"):
            merge_runtime(stored, {}, allowed)
    # The brokers that count are those the client goes to.
    stored = {"bootstrap.servers": "broker1:9092", "sasl.password": "env:P"}
    with pytest.raises(InvalidInputError):
        merge_runtime(stored, {"kafka.bootstrap.servers": "elsewhere:9092"}, allowed)


@pytest.mark.parametrize("entry", ["KAFKA_*", "env:", "file:relative/*", "https://x", "env:A B"])
def test_an_entry_that_is_none_is_refused(entry: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidInputError, match="allow_references"):
        Allowed.of([entry])
    monkeypatch.setenv(VARIABLE, f"env:KAFKA_*,{entry}")
    with pytest.raises(InvalidInputError, match=VARIABLE):
        Allowed.of()


def test_the_policy_goes_along_into_sparks_processes() -> None:
    allowed = Allowed.of(["env:MY_*", "file:/etc/x/*@b:9092"])

    assert parse_read_options({"path": "t", "allowReferences": allowed.text}).allowed == allowed
    assert parse_read_options({"path": "t", "allowReferences": ""}).allowed == Allowed(())
    assert parse_read_options({"path": "t"}).allowed == Allowed(DEFAULT)


def test_options_are_changed_only_to_what_may_be_stored(tmp_path: Path) -> None:
    table = TableContext.open(str(crafted(tmp_path / "t", given())))
    before = sorted((tmp_path / "t/_delta_log").iterdir())

    for name, value in [
        ("kafka.ssl.engine.location", "/tmp/evil.so"),
        ("kafka.sasl.password", "env:AWS_SECRET_ACCESS_KEY"),
        ("kafka.ssl.ca.location", "/etc/shadow"),
        ("kafka.client.idd", "x"),
    ]:
        with pytest.raises(InvalidInputError, match=name.replace(".", r"\.")):
            alter(table, set_options={name: value}, publish=lambda *_: None)
    assert sorted((tmp_path / "t/_delta_log").iterdir()) == before


def test_a_table_that_stores_what_is_refused_now_is_opened_and_mended(tmp_path: Path) -> None:
    path = crafted(tmp_path / "t", given(ssl__engine__location="/tmp/evil.so"))
    table = TableContext.open(str(path), {"kafka.ssl.engine.location": ""})

    assert alter(table, reset_options=["kafka.ssl.engine.location"], publish=lambda *_: None) is not None
    assert client_of(path) == {"bootstrap.servers": SERVERS}


def test_an_unknown_name_is_not_stored_and_its_neighbour_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"Did you mean 'kafka\.linger\.ms'"):
        create(tmp_path / "t", linger__mss="5")
    assert not (tmp_path / "t").exists()


def altered_definition(warehouse: Path, name: str, value: str) -> Catalog:
    """Make a table by SQL and then put an option into its definition, as who writes into the warehouse can."""
    Catalog(no_spark, warehouse).sql(f"CREATE TABLE t (a INT) WITH ({kafka_table('properties.client.id', 'x')})")
    (file,) = (warehouse / "_catalog/t").iterdir()
    content = json.loads(file.read_text())
    content["ddl"] = content["ddl"].replace("'properties.client.id' = 'x'", f"'{name}' = '{value}'")
    file.write_text(json.dumps(content))
    return Catalog(no_spark, warehouse)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("properties.ssl.engine.location", "/tmp/evil.so"),
        ("PROPERTIES.ssl.engine.location", "/tmp/evil.so"),
        ("properties.sasl.kerberos.principal", "x; touch /tmp/ran"),
        ("properties.client.id", "env:AWS_SECRET_ACCESS_KEY"),
        ("properties.sasl.password", "env:AWS_SECRET_ACCESS_KEY"),
        ("properties.ssl.ca.location", "/etc/shadow"),
        ("properties.metadata.broker.list", "evil:9092"),
        ("sink.partitioner", "os.path.Evil"),
        ("SINK.Partitioner", "os.path.Evil"),
    ],
)
def test_a_definition_is_checked_when_it_is_used(tmp_path: Path, name: str, value: str) -> None:
    catalog = altered_definition(tmp_path, name, value)

    with pytest.raises(InvalidInputError, match=f"(?i){name.lower()}"):
        catalog.table("t")
    # The program's own options win.
    assert catalog.table("t", options={name: ""}) is not None
    if name.startswith("properties"):
        assert Catalog(no_spark, tmp_path, options={name: "own"}).table("t") is not None
    if name == "sink.partitioner":
        assert Catalog(no_spark, tmp_path, allow_references=["class:os.path.*"]).table("t") is not None


def test_options_for_all_tables_are_of_clients(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"sink\.partitioner.*properties\.\*"):
        Catalog(no_spark, tmp_path, options={"sink.partitioner": "fixed"})


def test_given_credentials_are_in_no_handle(tmp_path: Path) -> None:
    path = crafted(tmp_path / "t", given(security__protocol="plaintext"))
    table = open_local(path, options={"kafka.sasl.password": STOLEN, "kafka.ssl.key.pem": f"PRIVATE {STOLEN}"})
    catalog = Catalog(no_spark, tmp_path / "w", options={"properties.sasl.password": STOLEN})
    catalog.sql(f"CREATE TEMPORARY TABLE t (a INT) WITH ({kafka_table('properties.ssl.key.password', STOLEN)})")
    connected = catalog.table("t", options={"properties.sasl.jaas.config": f"x {STOLEN}"})

    assert STOLEN not in everything_in(table)
    assert STOLEN not in everything_in(catalog)
    assert STOLEN not in everything_in(connected)
    assert "***" in everything_in(table)
    with pytest.raises(TypeError):
        vars(Secret("x"))


def everything_in(thing: object, depth: int = 0) -> str:
    """Write a thing and all that its attributes lead to, as a debugger or ``pytest -l`` shows it."""
    if depth > 6:
        return ""
    text = repr(thing)
    inner = list(vars(thing).values()) if hasattr(thing, "__dict__") and not isinstance(thing, type) else []
    if isinstance(thing, Mapping):
        inner += list(thing.values())
    if isinstance(thing, tuple | list):
        inner += list(thing)
    return text + "".join(everything_in(each, depth + 1) for each in inner if not callable(each))
