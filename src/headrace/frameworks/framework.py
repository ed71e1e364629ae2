"""What headrace needs of an array library, and how one is chosen. No array library but NumPy is imported here."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np

from headrace.base.indices import Indices
from headrace.base.optional import is_installed, loaded, missing_extra

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Allocate: TypeAlias = Callable[[tuple[int, ...], np.dtype[Any]], Array]
Gather: TypeAlias = Callable[[Indices], Any]

Output: TypeAlias = Literal["auto", "torch", "numpy", "jax"]
OUTPUTS = ("auto", "torch", "numpy", "jax")


class Framework(Protocol):
    """Makes batches of one array library."""

    name: str
    allocate: Allocate
    """Gives the memory for a batch's array."""

    def wrap(self, array: Array) -> Any:
        """The library's array over a NumPy array that nobody else holds; without a copy where possible."""

    def wrap_host(self, array: Array) -> Any:
        """The same for values that were a tensor on the host, where they stay."""

    def stack(self, samples: Sequence[Any]) -> Any:
        """NumPy arrays or torch tensors of one shape, as one array with a new first dimension.

        Raises:
            CollateError: the shapes differ, or the layout (sparse, nested) cannot be stacked.
            CollateTypeError: the library has no such element type.
        """

    def join_numbers(self, values: Sequence[Any], dtype: np.dtype[Any] | None) -> Any:
        """Python numbers or NumPy scalars as one vector; of `dtype`, or of the type that the values ask for."""

    def pad(self, samples: Sequence[Any], multiple_of: int, value: float, batch_first: bool) -> tuple[Any, list[int]]:
        """Arrays or tensors filled up with `value` along their first dimension and stacked, and their lengths.

        Raises:
            CollateError: other dimensions differ too, or their type cannot hold `value`.
        """

    def convert(self, value: Any) -> Any:
        """One array, tensor or NumPy scalar as the library's array, over the same memory where possible."""


class RandomSource(Protocol):
    """Draws random indices from one library's generator."""

    def draw_seed(self) -> int:
        """A fresh 63-bit seed."""

    def fresh(self) -> RandomSource:
        """A source of its own, seeded by one draw from this one."""

    def permutation(self, n: int) -> Indices: ...

    def integers(self, high: int, size: int) -> Indices: ...

    def as_weights(self, weights: Any) -> Any:
        """The weights as the library's own float64 array."""

    def weighted(self, weights: Any, size: int, replacement: bool) -> Indices: ...


def resolve_output(output: str) -> str:
    """The name of a framework: "auto" means torch if it is installed, else NumPy.

    Raises:
        ValueError: there is no such output.
        MissingExtraError: the library is not installed.
    """
    if output not in OUTPUTS:
        raise ValueError(f"output must be one of {', '.join(map(repr, OUTPUTS))}, got {output!r}.")
    if output == "auto":
        return "torch" if is_installed("torch") else "numpy"
    if not is_installed(output):
        raise missing_extra(output, f"output={output!r}")
    return output


def empty_aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """An array like `np.empty`'s, that starts at a multiple of 64 bytes.

    NumPy's own start 16 bytes into a page, where copying from page-aligned memory is several times slower on some CPUs.
    """
    n_bytes = math.prod(shape) * dtype.itemsize
    if n_bytes < _WORTH_ALIGNING or dtype.hasobject:
        return np.empty(shape, dtype)
    memory = np.empty(n_bytes + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + n_bytes].view(dtype).reshape(shape)


_WORTH_ALIGNING = 2048


def framework_of(output: str, allocate: Allocate = empty_aligned) -> Framework:
    """The framework called `output`, which takes the memory of its batches from `allocate`."""
    match resolve_output(output):
        case "torch":
            from headrace.frameworks.torch_tensors import TorchTensors

            return TorchTensors(allocate)
        case "jax":
            from headrace.frameworks.jax_arrays import JaxArrays

            return JaxArrays(allocate)
        case _:
            from headrace.frameworks.numpy_arrays import NumpyArrays

            return NumpyArrays(allocate)


def random_source(generator: Any, library: str = "auto") -> RandomSource:
    """A source that draws from `generator`, or from the library's global one if it is None.

    Args:
        library: whose global generator to use: "torch", "numpy", or "auto" for torch if it is installed.

    Raises:
        TypeError: `generator` is neither torch's nor NumPy's.
        ValueError: there is no such library.
    """
    if library not in ("auto", "torch", "numpy"):
        raise ValueError(f"library must be 'auto', 'torch' or 'numpy', got {library!r}.")
    if generator is None:
        source = resolve_output(library)
    else:
        source = type(generator).__module__.partition(".")[0]
    if source == "torch":
        from headrace.frameworks.torch_sampling import TorchRandom

        return TorchRandom(generator)
    if generator is None or isinstance(generator, (np.random.Generator, np.random.RandomState)):
        from headrace.frameworks.numpy_arrays import NumpyRandom

        return NumpyRandom(generator)
    raise TypeError(f"generator must be a torch.Generator or a numpy.random.Generator, got {generator!r}.")


def tensor_type() -> type | None:
    """`torch.Tensor` if somebody has imported torch, else None: then nothing can be a tensor."""
    torch = loaded("torch")
    return None if torch is None else getattr(torch, "Tensor", None)


def gather_of(source: Any, framework: Framework) -> Gather | None:
    """A function that gathers rows of an array or tensor into a new one, or None if rows must be indexed one by one.

    Guarantees: the result equals the rows `source[i]` stacked, values, type and memory layout alike.
    """
    from headrace.frameworks.numpy_arrays import gather_rows

    tensor = tensor_type()
    finish: Callable[[Any], Any]
    if isinstance(source, np.ndarray):
        gather = gather_rows(source, framework.allocate)
        finish = framework.wrap
    elif tensor is not None and type(source) is tensor:
        from headrace.frameworks.torch_tensors import gather_tensor_rows, plain_array

        array = plain_array(source)
        if array is not None:
            gather = gather_rows(array, framework.allocate)
            finish = framework.wrap_host
        else:
            gather = gather_tensor_rows(source, framework.allocate)
            finish = framework.convert
    else:
        return None
    return None if gather is None else lambda indices: finish(gather(indices))
