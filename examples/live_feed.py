"""An online learner on a live feed: it crashes, resumes from its last checkpoint, and has learnt from every row once.

The feed is a message log here, which keeps its rows by offset, as Redis Streams, NATS JetStream and Kafka do:
`read_redis(...)` and `read_nats(...)` take the place of `Stream.live(read_log, positions=True)`.
"""

import threading
import time

import numpy as np

from headrace import DataLoader, LiveRow, Stream

N_ROWS = 600
WEIGHTS = np.array([2.0, -1.0, 0.5])

log = []  # what a server would keep
checkpoint = {}  # what would be on disk


def produce():
    """Writes rows for a while, as people click."""
    rng = np.random.default_rng(0)
    for n in range(N_ROWS):
        features = rng.normal(size=3)
        log.append({"n": n, "x": features, "y": features @ WEIGHTS})
        if n % 10 == 0:
            time.sleep(0.01)


def read_log(positions):
    """Rows from a position on, as they are written."""
    offset = positions.get("", -1) + 1
    while offset < N_ROWS:
        if offset == len(log):
            time.sleep(0.001)
            continue
        yield LiveRow(log[offset], position=offset)
        offset += 1


def acknowledge(positions):
    """A server could forget these rows now."""


def train(crash_after=None):
    stream = Stream.live(read_log, positions=True, commit=acknowledge)
    with DataLoader(stream, batch_size=8, num_workers=2, engine="threads", output="numpy") as loader:
        weights, seen = np.zeros(3), []
        if checkpoint:
            weights, seen = checkpoint["weights"].copy(), list(checkpoint["seen"])
            loader.load_state_dict(checkpoint["loader"])
        for i, batch in enumerate(loader):
            weights += 0.1 * (batch["y"] - batch["x"] @ weights) @ batch["x"] / len(batch["y"])
            seen += batch["n"].tolist()
            if i % 10 == 9:
                checkpoint.update(weights=weights.copy(), seen=list(seen), loader=loader.state_dict())
                loader.commit(checkpoint["loader"])
            if i == crash_after:
                raise RuntimeError("the machine is gone")
        return weights, seen


def main():
    producer = threading.Thread(target=produce)
    producer.start()
    try:
        train(crash_after=33)
    except RuntimeError as error:
        print(f"Crashed: {error}. The checkpoint has {len(checkpoint['seen'])} rows.")
    weights, seen = train()
    producer.join()
    print("Every row once, in order:", seen == list(range(N_ROWS)))
    print("Learnt:", weights.round(1).tolist())


if __name__ == "__main__":
    main()
