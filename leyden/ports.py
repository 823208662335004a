"""Ports to serve on, and who holds them."""

from __future__ import annotations

import errno
import socket
from contextlib import suppress

import psutil

from leyden.errors import UsageError


def reserve_port(host: str, port: int) -> socket.socket:
    """A bound socket to serve on (port 0: any free one). Raises ``UsageError`` that names who holds a taken port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # By its number: asyncio turns Nagle's algorithm off only for sockets that say they are TCP; with it each answer takes 40 ms longer.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
        sock.listen(1024)  # with SO_REUSEADDR two sockets may bind, but only one may listen
    except (OSError, OverflowError) as error:
        sock.close()
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            raise UsageError(f"port {port} is taken{holder_of(port)}", "stop it, or choose another with --port (0: any)") from error
        raise UsageError(f"cannot listen on {host}:{port}: {error}", "choose another with --host and --port") from error
    return sock


def check_port_free(host: str, port: int) -> None:
    """Raises ``UsageError`` if nobody could listen there now."""
    reserve_port(host, port).close()


def holder_of(port: int) -> str:
    """`` by NAME (pid N)`` for whoever listens on the port; empty where we may not know."""
    with suppress(psutil.AccessDenied, psutil.NoSuchProcess):
        for connection in psutil.net_connections(kind="tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
                return f" by {psutil.Process(connection.pid).name()} (pid {connection.pid})"
    return ""
