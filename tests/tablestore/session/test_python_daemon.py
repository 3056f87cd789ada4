"""Spark's Python daemon: tasks come at once."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from tablestore import python_daemon

pytestmark = pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="only Linux acknowledges when told to")
TASKS = 60


def test_the_second_packet_of_a_task_does_not_wait_for_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []

    def read_a_task(sock: socket.socket, _authenticated: bool) -> int:
        assert sock.recv(1) == b"1"
        begun = time.perf_counter()
        assert sock.recv(1) == b"2"
        waited.append(time.perf_counter() - begun)
        sock.sendall(b".")
        return 0

    monkeypatch.setattr(python_daemon, "_worker", read_a_task)

    def work(sock: socket.socket) -> None:
        for _ in range(TASKS):
            python_daemon.worker(sock, authenticated=True)

    with socket.create_server(("127.0.0.1", 0)) as door, socket.create_connection(door.getsockname()) as spark:
        sock, _ = door.accept()
        with sock:
            worker = threading.Thread(target=work, args=(sock,))
            worker.start()
            for _ in range(TASKS):
                spark.sendall(b"1")
                spark.sendall(b"2")
                assert spark.recv(1) == b"."
            worker.join()
    # Linux acknowledges by itself after 40 ms.
    assert sorted(waited)[TASKS // 2] < 0.02


def test_it_says_nothing_of_acknowledgements_where_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python_daemon, "_worker", lambda sock, authenticated: sock.recv(1)[0] + authenticated)
    spark, sock = socket.socketpair(socket.AF_UNIX)
    with spark, sock:
        spark.sendall(bytes([6]))
        assert python_daemon.worker(sock, authenticated=True) == 7
