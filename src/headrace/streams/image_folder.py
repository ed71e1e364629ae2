"""A folder of images as a dataset by index, as torchvision's `ImageFolder` is one."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from headrace.data.dataset import Dataset
from headrace.streams.readers import read_images


class ImageFolder(Dataset[tuple[Any, Any]]):
    """Images and their labels, by index: `dataset[i]` is (image, label).

    Classes, labels and order are those of torchvision's `ImageFolder`. Images are arrays of height, width and channels.

    Args:
        root: has a folder for each class.
        transform: is called with each image.
        options: those of `read_images`: `mode`, `decoder`, `listing`, `table` and so on.

    Attributes:
        classes: the names of the classes; a label is a place in them.
        class_to_idx: the label of each class.

    Raises:
        FileNotFoundError: there is no such folder, or no image in it.

    Examples:
        >>> import pathlib, tempfile
        >>> root = pathlib.Path(tempfile.mkdtemp())
        >>> (root / "cat").mkdir()
        >>> _ = (root / "cat" / "0.jpg").write_bytes(b"jpg")
        >>> dataset = ImageFolder(root, decoder=len)
        >>> dataset.classes, dataset[0]
        (['cat'], (3, 0))
    """

    def __init__(
        self, root: str | os.PathLike[str], transform: Callable[[Any], Any] | None = None, **options: Any
    ) -> None:
        self._source = read_images(root, **options).recipe.source
        self.transform = transform
        self.classes: list[str] = self._source.classes
        self.class_to_idx = {name: i for i, name in enumerate(self.classes)}

    def __len__(self) -> int:
        return len(self._source.versions())

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        row = self._source.row(index)
        image = row["image"]
        return (image if self.transform is None else self.transform(image)), row.get("label")
