"""Records anew what the present code gives: `python -m tests.recorded`, from the root of the repository.

What is recorded already stays if its case cannot run here, for want of a module.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from tests.recorded.cases import CASES, STATES
from tests.recorded.files import write_files

FOLDER = Path(__file__).parent
HASHES = FOLDER / "hashes.json"
SAVED = FOLDER / "states.json"


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def write(path: Path, recorded: dict[str, Any]) -> None:
    """One line for each case."""
    lines = (f"{json.dumps(name)}: {json.dumps(value)}" for name, value in recorded.items())
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def main() -> None:
    before = read(HASHES)
    with tempfile.TemporaryDirectory() as name:
        folder = write_files(Path(name))
        hashes = {
            name: case.hashes(folder, "inline") if case.can_run else before.get(name) for name, case in CASES.items()
        }
        states = {name: case.record(folder) for name, case in STATES.items()}
    write(HASHES, hashes)
    write(SAVED, states)
    changed = [name for name, value in hashes.items() if name in before and before[name] != value]
    print(f"{len(hashes)} cases, {len(states)} states; changed: {', '.join(changed) or 'none'}")


if __name__ == "__main__":
    main()
