"""Builds and loads the software accelerator, once per version of torch. A process that has loaded it keeps it."""

from __future__ import annotations

import getpass
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

SOURCE = Path(__file__).with_name("accelerator.cpp")
NAME = "soft"


def is_possible() -> bool:
    """Whether there is a compiler, and a torch whose interface the source was written for."""
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    return shutil.which("g++") is not None and version >= (2, 13)


def build() -> Path:
    """The library; built if this is the first time."""
    mark = hashlib.sha256(SOURCE.read_bytes() + torch.__version__.encode()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"headrace-accelerator-{getpass.getuser()}"
    library = folder / f"{mark}.so"
    if library.exists():
        return library
    folder.mkdir(mode=0o700, exist_ok=True)
    root = Path(torch.__file__).parent
    abi = int(torch.compiled_with_cxx11_abi())
    with tempfile.TemporaryDirectory(dir=folder) as scratch:  # another process may build it, too
        made = Path(scratch) / library.name
        includes = [f"-I{root}/include", f"-I{root}/include/torch/csrc/api/include", f"-D_GLIBCXX_USE_CXX11_ABI={abi}"]
        libraries = [f"-L{root}/lib", "-lc10", "-ltorch_cpu", f"-Wl,-rpath,{root}/lib"]
        options = ["-std=c++20", "-shared", "-fPIC", "-O1"]
        command = ["g++", *options, *includes, str(SOURCE), *libraries, "-o", str(made)]
        built = subprocess.run(command, capture_output=True, text=True, check=False)
        assert built.returncode == 0, built.stderr[-4000:]
        os.replace(made, library)
    return library


def load() -> Any:
    """Make the accelerator torch's own, called "soft", of two devices. Returns its operations.

    Its module lacks most names that `torch.cuda` has: streams are those of `torch.accelerator`. Pages are locked by
    functions that are called as CUDA's are.
    """
    torch.ops.load_library(str(build()))
    torch.utils.rename_privateuse1_backend(NAME)
    ops = torch.ops.accelerator
    runtime = SimpleNamespace(
        cudaHostRegister=lambda address, n_bytes, flags: ops.register_host(address, n_bytes),
        cudaHostUnregister=ops.unregister_host,
    )
    module: Any = SimpleNamespace(
        is_available=lambda: True, device_count=lambda: 2, _is_in_bad_fork=lambda: False, cudart=lambda: runtime
    )
    torch._register_device_module(NAME, module)
    return ops
