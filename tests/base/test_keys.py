"""Keys: the same for ever, and unlike their neighbours'."""

from __future__ import annotations

from itertools import pairwise

from headrace.base.keys import derive_key


def test_keys_are_the_same_on_every_machine_and_day():
    """A changed value would make every saved state resume into another order."""
    assert derive_key(0, 0, "shuffle") == 0x737131C866B173AE8FE8F3063ABD1C7C
    assert derive_key(-5, 3, "sample 12") == 0xDAB28EE6593DC8D349215F9CAD5ADF2F


def test_keys_have_128_bits_and_differ_in_half_of_them_from_their_neighbours():
    keys = [derive_key(seed, epoch, f"sample {i}") for seed in range(8) for epoch in range(8) for i in range(8)]
    assert len(set(keys)) == len(keys)
    assert max(keys).bit_length() == 128
    distances = [(a ^ b).bit_count() for a, b in pairwise(keys)]
    assert 62 < sum(distances) / len(distances) < 66


def test_numbers_do_not_run_into_each_other():
    """Seed 1 in epoch 23 is not seed 12 in epoch 3."""
    assert derive_key(1, 23, "a") != derive_key(12, 3, "a")
    assert derive_key(1, 2, "3,a") != derive_key(1, 23, "a")


def test_any_int_is_a_seed():
    assert len({derive_key(seed, 0, "a") for seed in (0, -1, 1, 2**64, -(2**64), 2**200)}) == 6
