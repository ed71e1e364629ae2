"""Before all tests: what torch says only once in a process is said, and what was imported is not collected again."""

from __future__ import annotations

import gc
import warnings

import numpy as np

from tests.needs import HAS_TORCH

if HAS_TORCH:
    import torch

    # Where warnings are errors, a worker that is the first to hear one would raise, and later ones would not.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        read_only = np.zeros(1)
        read_only.flags.writeable = False
        torch.as_tensor(read_only)
        torch.empty((0,), dtype=torch.complex32)
        torch.zeros(1, 1).to_sparse_csr()
        torch.nested.nested_tensor([torch.zeros(1)])

gc.freeze()
