"""What `headrace top` sees: loaders write a line about themselves once a second, while somebody watches.

Whoever watches makes a folder, of their own user; a loader that finds it writes a small file there, from its own loop.
Without the folder, that is one look per second, and nothing is written.
"""

from __future__ import annotations

import json
import os
import stat
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.insight.recorder import Recorder

EVERY_NS = 10**9
_STALE_S = 3600.0


def watch_folder() -> Path:
    """Where loaders of this user tell about themselves."""
    return Path(os.environ.get("TMPDIR") or "/tmp") / f"headrace-top-{os.getuid()}"


def open_folder() -> Path:
    """Make the folder, so that loaders tell about themselves.

    Raises:
        PermissionError: somebody else has made it.
    """
    folder = watch_folder()
    folder.mkdir(mode=0o700, exist_ok=True)
    if not _is_own(folder):
        raise PermissionError(f"{folder} belongs to another user, or others may write to it: remove it, or set TMPDIR.")
    return folder


def close_folder() -> None:
    """Remove the folder: nobody watches any more."""
    with suppress(OSError):
        for file in watch_folder().iterdir():
            file.unlink(missing_ok=True)
        watch_folder().rmdir()


def _is_own(folder: Path) -> bool:
    try:
        found = os.lstat(folder)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022


def tell(recorder: Recorder) -> None:
    """Write what a loader does, if somebody watches. Called from its loop, once a second at most."""
    folder = watch_folder()
    if not _is_own(folder):
        return
    from headrace.insight.live import busy_seconds, flat_figures, totals_now

    now = totals_now(recorder)
    before, recorder.told = recorder.told, now
    owner = None if recorder.owner is None else recorder.owner()
    setup = recorder.setup()
    run = recorder.latest
    line: dict[str, Any] = {
        "pid": os.getpid(),
        "loader": recorder.number,
        "script": Path(sys.argv[0]).name if sys.argv and sys.argv[0] else "python",
        "text": "" if owner is None else repr(owner),
        "rank": 0 if setup is None else setup.rank,
        "engine": "" if setup is None else setup.engine,
        "num_workers": 0 if setup is None else setup.workers,
        "epoch": -1 if run is None else run.epoch,
        "epoch_batches": 0 if run is None else run.batches,
        "restarts": recorder.restarts,
        "busy": {str(worker): seconds for worker, seconds in busy_seconds(now).items() if worker >= 0},
        "at": time.time(),
        **flat_figures(now, before),
    }
    path = folder / f"{os.getpid()}-{recorder.number}.json"
    with suppress(OSError):  # whoever watched may have left just now
        path.with_suffix(".new").write_text(json.dumps(line), encoding="utf-8")
        path.with_suffix(".new").replace(path)


def read_lines() -> list[dict[str, Any]]:
    """What loaders told last, those of processes that have ended left out; the oldest process first."""
    found = []
    for path in sorted(watch_folder().glob("*.json")):
        try:
            line = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if not _runs(line["pid"]) or time.time() - line["at"] > _STALE_S:
            path.unlink(missing_ok=True)
        else:
            found.append(line)
    return sorted(found, key=lambda line: (line["pid"], line["loader"]))


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
