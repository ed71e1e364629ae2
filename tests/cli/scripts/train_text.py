"""A text model with a collate function of its own, and a loader for each of training and validation."""

import torch
import torch.utils.data as data
from torch import nn
from torch.nn.utils.rnn import pad_sequence

LINES = [f"{'to be or not to be'[: 3 + i % 15]} {i}" for i in range(60)]


def as_padded(samples):
    letters = pad_sequence([torch.tensor(list(line.encode())) for line, _ in samples], batch_first=True)
    return letters, torch.tensor([label for _, label in samples])


class Lines(data.Dataset):
    def __len__(self):
        return len(LINES)

    def __getitem__(self, index):
        return LINES[index], len(LINES[index]) % 3


def main():
    torch.manual_seed(1)
    torch.set_num_threads(1)
    embed, guess = nn.EmbeddingBag(128, 8), nn.Linear(8, 3)
    optimizer = torch.optim.Adam([*embed.parameters(), *guess.parameters()], lr=0.01)
    training, validation = data.random_split(Lines(), [44, 16])
    batches = data.DataLoader(
        training, 4, shuffle=True, collate_fn=as_padded, num_workers=2, persistent_workers=True, prefetch_factor=3
    )
    for _ in range(2):
        for letters, labels in batches:
            loss = nn.functional.cross_entropy(guess(embed(letters)), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(repr(loss.item()))
        with torch.no_grad():
            parts = [
                nn.functional.cross_entropy(guess(embed(letters)), labels)
                for letters, labels in data.DataLoader(validation, 8, collate_fn=as_padded)
            ]
        print("validation", repr(torch.stack(parts).mean().item()))


if __name__ == "__main__":
    main()
