"""A port: free, taken, or none that this machine has."""

from __future__ import annotations

import os
import socket

import pytest

from leyden.errors import UsageError
from leyden.ports import check_port_free, reserve_port


def test_a_taken_port_names_its_holder() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(UsageError, match=rf"port {port} is taken by \S+ \(pid {os.getpid()}\)") as caught:
            check_port_free("127.0.0.1", port)
        assert "--port" in (caught.value.hint or "")
    check_port_free("127.0.0.1", port)


def test_a_reserved_port_is_ours_alone_and_serves() -> None:
    with reserve_port("127.0.0.1", 0) as reserved:
        address = reserved.getsockname()
        with pytest.raises(UsageError):
            reserve_port(*address)
        with socket.create_connection(address), reserved.accept()[0]:
            pass


@pytest.mark.parametrize(("host", "port"), [("127.0.0.1", 70_000), ("203.0.113.7", 4747), ("no such host", 4747)])
def test_an_address_that_cannot_be_ours_is_a_usage_error(host: str, port: int) -> None:
    with pytest.raises(UsageError, match="cannot listen on"):
        check_port_free(host, port)
