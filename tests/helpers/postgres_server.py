"""A PostgreSQL server for one test session, run with the installed programs."""

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import Any

PLACES = "/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin"  # where Debian and Red Hat install it
PASSWORD = "p@ss/word%"  # needs escapes in a URL
ESCAPED = "p%40ss%2Fword%25"


def programs() -> Path | None:
    """Return the directory of initdb and postgres, or None if they or openssl, which TLS needs, are not installed."""
    if not shutil.which("openssl"):
        return None
    found = shutil.which("initdb")
    places = [Path(found).resolve().parent] if found else []
    places += sorted((path for pattern in PLACES for path in Path("/").glob(pattern[1:])), reverse=True)
    return next((path for path in places if (path / "postgres").exists()), None)


class PostgresServer:
    """A server on a free port of 127.0.0.1 that requires a password. It does not flush its data to the disk."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        found = programs()
        assert found, "PostgreSQL is not installed"
        self._programs = found
        self._user = "nobody" if os.getuid() == 0 else None  # PostgreSQL refuses to run as root
        if self._user:
            account = pwd.getpwnam(self._user)
            os.chown(directory, account.pw_uid, account.pw_gid)
        with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as listener:
            self.port = listener.getsockname()[1]
        password = directory / "password"
        password.write_text(PASSWORD)
        self._run("initdb", "-D", "data", "-U", "nmt", "-A", "scram-sha-256", "--pwfile=password", "--no-sync")
        password.unlink()
        self._make_certificate()
        self._count = 0
        self.start()

    def _make_certificate(self) -> None:
        """Make a self-signed certificate for 127.0.0.1."""
        subject = "-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1"
        files = "-keyout", "data/server.key", "-out", "data/server.crt"
        self._run("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject, *files)
        shutil.copy(self._directory / "data/server.crt", self.certificate)

    @property
    def certificate(self) -> Path:
        return self._directory / "server.crt"

    def _run(self, program: str, *words: str) -> None:
        command = [program if program == "openssl" else str(self._programs / program), *words]
        done = subprocess.run(
            command, cwd=self._directory, user=self._user, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr

    def start(self) -> None:
        options = f"-c fsync=off -c ssl=on -c listen_addresses=127.0.0.1 -c unix_socket_directories= -p {self.port}"
        self._run("pg_ctl", "start", "-w", "-D", "data", "-l", "log", "-o", options)

    def stop(self) -> None:
        self._run("pg_ctl", "stop", "-w", "-D", "data", "-m", "fast")

    def execute(self, statement: str, name: str = "postgres") -> list[Any]:
        from pg8000 import native

        connection = native.Connection("nmt", "127.0.0.1", name, self.port, PASSWORD, ssl_context=False)
        with contextlib.closing(connection):
            return list(connection.run(statement) or [])

    def url(self, name: str) -> str:
        return f"postgresql://nmt:{ESCAPED}@127.0.0.1:{self.port}/{name}"

    def new(self) -> str:
        """Make an empty database, and return its URL."""
        self._count += 1
        self.execute(f"CREATE DATABASE test{self._count}")
        return self.url(f"test{self._count}")


@contextlib.contextmanager
def running() -> Any:
    shared = Path("/dev/shm")
    directory = Path(tempfile.mkdtemp(dir=shared if shared.exists() else None))
    try:
        server = PostgresServer(directory)
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
