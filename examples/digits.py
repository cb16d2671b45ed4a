"""A small convolutional classifier of scikit-learn's handwritten digits (1797 images of 8 x 8 pixels).

`digits.toml` names the two functions below. Any model is trained the same way: one function gives an
`nn.Sequential`, which farflung cuts between its layers, and a loss; the other gives the data.
"""

import numpy as np
import torch
from torch import nn
from torch.nn import functional


def model():
    """The layers, and a loss that is the sum over the batch (not its mean: farflung divides by the whole batch)."""
    layers = nn.Sequential(
        nn.Sequential(nn.Conv2d(1, 32, 3, padding=1), nn.GroupNorm(4, 32), nn.ReLU()),
        nn.Sequential(nn.Conv2d(32, 32, 3, padding=1), nn.GroupNorm(4, 32), nn.ReLU(), nn.MaxPool2d(2)),
        nn.Sequential(nn.Conv2d(32, 64, 3, padding=1), nn.GroupNorm(4, 64), nn.ReLU(), nn.MaxPool2d(2)),
        nn.Sequential(nn.Flatten(), nn.Linear(256, 10)),
    )
    return layers, loss


def loss(logits, targets):
    """Sum of the cross entropies, in nats; logits [b, 10], targets [b] int64."""
    return functional.cross_entropy(logits, targets, reduction="sum")


def data():
    """Training and validation images [n, 1, 8, 8] in 0..1 with their digits [n]: every fifth is held out."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = torch.from_numpy(digits.images.astype(np.float32) / 16)[:, None]
    targets = torch.from_numpy(digits.target.astype(np.int64))
    held_out = torch.arange(len(targets)) % 5 == 4
    return (images[~held_out], targets[~held_out]), (images[held_out], targets[held_out])
