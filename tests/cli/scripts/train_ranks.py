"""A model on two ranks, with gloo: started by torchrun, or else it starts its ranks itself."""

import os
import socket
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

WORLD = 2


def train(rank):
    torch.manual_seed(2)
    torch.set_num_threads(1)
    numbers = torch.arange(64.0).reshape(32, 2) / 64
    dataset = TensorDataset(numbers, numbers.sum(1, keepdim=True))
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=4, sampler=sampler, num_workers=1)
    model = DistributedDataParallel(nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for step, (inputs, targets) in enumerate(loader):
            loss = nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            sys.stdout.write(f"rank {rank}, epoch {epoch}, step {step}: {loss.item()!r}\n")  # one write: ranks share it


def begin_rank(rank, port):
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=WORLD)
    train(rank)
    dist.destroy_process_group()


def main():
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
        train(dist.get_rank())
        dist.destroy_process_group()
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(begin_rank, args=(port,), nprocs=WORLD)


if __name__ == "__main__":
    main()
