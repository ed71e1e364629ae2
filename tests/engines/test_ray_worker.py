"""Who is taken to be gone, of the processes that share a worker."""

from __future__ import annotations

from headrace.engines.ray_worker import Clients


def test_a_process_that_is_silent_is_gone_after_a_minute():
    clients = Clients()
    clients.hear(1, 0.0)
    clients.hear(2, 0.0)
    gone = [clients.hear(1, 5.0 * turn) for turn in range(1, 20)]
    assert gone.index([2]) == 12
    assert len(clients) == 1


def test_a_long_sample_makes_nobody_silent():
    """Nobody can be heard meanwhile; then all that they said comes at once, in turn."""
    clients = Clients()
    for client in (1, 2, 3):
        clients.hear(client, 0.0)
    for turn in range(60):
        for client in (1, 2, 3):
            assert clients.hear(client, 300.0 + turn / 1000) == []
    assert len(clients) == 3


def test_one_that_parts_is_forgotten():
    clients = Clients()
    clients.hear(1, 0.0)
    clients.part(1)
    clients.part(1)
    assert not clients
