"""An image classifier with random augmentation, as people write them for torch; nothing here knows of headrace."""

import random

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Squares(Dataset):
    """Grey pictures with a bright square in one of four corners."""

    def __len__(self):
        return 48

    def __getitem__(self, index):
        label = index % 4
        picture = np.random.rand(16, 16).astype(np.float32) * 0.3
        row, column = 8 * (label // 2), 8 * (label % 2)
        picture[row : row + 8, column : column + 8] += random.uniform(0.3, 0.7)
        return self.augment(torch.from_numpy(picture)[None]), label

    def augment(self, picture):
        if torch.rand(()) < 0.5:
            picture = picture + 0.05 * torch.randn_like(picture)
        return picture.roll(int(torch.randint(-1, 2, ())), dims=-1)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 14 * 14, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(Squares(), batch_size=8, shuffle=True, num_workers=2, drop_last=True)
    for epoch in range(2):
        for pictures, labels in loader:
            loss = nn.functional.cross_entropy(model(pictures), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(epoch, repr(loss.item()))
    print(isinstance(loader, torch.utils.data.DataLoader), len(loader), torch.rand(()).item())


if __name__ == "__main__":
    main()
