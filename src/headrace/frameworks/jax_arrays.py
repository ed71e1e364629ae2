"""Batches as JAX arrays, on JAX's default device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.base.errors import CollateError, CollateTypeError
from headrace.base.optional import import_extra
from headrace.frameworks.framework import Array
from headrace.frameworks.numpy_arrays import NumpyArrays, as_array

if TYPE_CHECKING:
    import jax.numpy as jnp
else:
    jnp = import_extra("jax.numpy", "jax", "output='jax'")


class JaxArrays(NumpyArrays):
    """Makes JAX arrays; 64-bit numbers become 32-bit ones unless `jax_enable_x64` is set, as everywhere in JAX."""

    name = "jax"

    def wrap(self, array: Array) -> Any:
        if array.dtype.names is not None:
            return {name: self.wrap(np.ascontiguousarray(array[name])) for name in array.dtype.names}
        try:
            converted = jnp.asarray(array)
        except TypeError as error:
            raise CollateTypeError(f"JAX has no arrays of dtype {array.dtype}.") from error
        if converted.dtype != array.dtype and array.dtype.kind in "iu" and not _fits(array, converted.dtype):
            raise CollateError(
                f"{array.dtype} values do not fit {converted.dtype}, which JAX makes of them. Set jax_enable_x64."
            )
        return converted

    def convert(self, value: Any) -> Any:
        if isinstance(value, jnp.ndarray):
            return value
        return self.wrap(np.array(as_array(value)))  # a copy: a JAX array must not change when the user's array does


def _fits(array: Array, dtype: Any) -> bool:
    bounds = np.iinfo(dtype)
    return array.size == 0 or bool(array.min() >= bounds.min and array.max() <= bounds.max)
