"""A PostgreSQL server of the tests' own: a new folder, a Unix socket in it, and nothing on the network."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

USER = "tester"
_SETTINGS = "-c listen_addresses='' -c fsync=off -c max_connections=50"


def find_programs() -> Path | None:
    """The folder of `initdb` and `pg_ctl`: on the PATH, or where Debian and others put each version's own."""
    places = [Path(path) for path in os.environ.get("PATH", "").split(os.pathsep)]
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    places += sorted(Path("/usr").glob("pgsql-*/bin"), reverse=True)
    return next((place for place in places if all((place / name).exists() for name in ("initdb", "pg_ctl"))), None)


@contextmanager
def running_server() -> Iterator[str]:
    """Start a server and give its DSN; skips the test where PostgreSQL is not installed."""
    programs = find_programs()
    if programs is None:
        pytest.skip("needs the programs of a PostgreSQL server, initdb and pg_ctl")
    folder = tempfile.mkdtemp(prefix="headrace-postgres-")  # short, as the path of a Unix socket must be
    account = _unprivileged_account()
    if account is not None:
        os.chown(folder, account.pw_uid, account.pw_gid)

    def run(program: str, *arguments: str) -> None:
        subprocess.run(
            [programs / program, "-D", f"{folder}/data", *arguments],
            check=True,
            cwd=folder,
            env={"PATH": os.environ["PATH"], "LC_ALL": "C"},
            stdout=subprocess.DEVNULL,
            user=None if account is None else account.pw_uid,
            group=None if account is None else account.pw_gid,
        )

    try:
        run("initdb", "-U", USER, "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
        run("pg_ctl", "start", "-w", "-l", f"{folder}/log", "-o", f"-k {folder} {_SETTINGS}")
        try:
            yield f"postgresql://{USER}@/postgres?host={folder}"
        finally:
            run("pg_ctl", "stop", "-w", "-m", "immediate")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _unprivileged_account() -> pwd.struct_passwd | None:
    """Whom to run the server as: PostgreSQL refuses to be root."""
    return pwd.getpwnam("nobody") if os.geteuid() == 0 else None
