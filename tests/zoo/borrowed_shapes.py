"""A tensor takes the shape of another one, which has lost channels since."""

import torch
from torch import Tensor

from tests.zoo.kinds import Kind, Net, batch, kind, parts
from tests.zoo.layers import conv, linear

IMAGE = batch(3, 4, 4)


class Borrowing(Net):
    """Channels are mixed, flattened and put back into the shape of what came in."""

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        mixed = torch.relu(self.second(x)).flatten(2).softmax(1)
        return self.head(self.back(mixed, x))

    def back(self, y: Tensor, x: Tensor) -> Tensor:
        n, channels, height, width = x.shape
        return y.reshape(n, channels, height, width)


class WholeShape(Borrowing):
    def back(self, y: Tensor, x: Tensor) -> Tensor:
        return y.reshape(x.shape)


class WholeSize(Borrowing):
    def back(self, y: Tensor, x: Tensor) -> Tensor:
        return y.view(x.size())


class Spread(Borrowing):
    def back(self, y: Tensor, x: Tensor) -> Tensor:
        return torch.reshape(y, (*x.shape[:2], *x.shape[-2:]))


class Joined(Borrowing):
    def back(self, y: Tensor, x: Tensor) -> Tensor:
        return y.reshape(x.shape[:2] + x.shape[2:])


class AsAnother(Borrowing):
    def back(self, y: Tensor, x: Tensor) -> Tensor:
        return y.reshape_as(x)


class Counted(Borrowing):
    def back(self, y: Tensor, x: Tensor) -> Tensor:
        n, _, height, width = x.shape
        return y.reshape(-1, x.numel() // (n * height * width), height, width)


class Sliced(Borrowing):
    def back(self, y: Tensor, x: Tensor) -> Tensor:
        return y.unflatten(2, x.shape[2:])[:, : x.shape[1]]


class ClassToken(Net):
    """CLIP's way to repeat a token for each image: it is added to zeros."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        zeros = torch.zeros(x.shape[0], 1, x.shape[-1], dtype=x.dtype, device=x.device)
        x = torch.cat([self.token + zeros, x], dim=1)
        return self.head(x + torch.relu(self.second(x)))


class SummedIntoZeros(Net):
    """Sums over parts, as in the layers of a graph network."""

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x.flatten(0, 1)))
        parts = torch.arange(x.size(0), device=x.device) % 3
        summed = torch.zeros(3, x.size(1), dtype=x.dtype, device=x.device).index_add(0, parts, x)
        count = torch.ones(3, 1, dtype=x.dtype, device=x.device)
        return self.head(torch.relu(self.second(x + (summed / count)[parts])))


class StateOfZeros(Net):
    """A recurrent cell by hand: its state begins with zeros, and is as wide as the cell says."""

    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros(x.size(0), 5, dtype=x.dtype, device=x.device)
        carried = x.new_zeros(x.size(0), 7)
        for time in range(3):
            state = torch.tanh(self.first(torch.cat([x[:, time], state], 1)))
            carried = torch.relu(self.second(state)) + carried
        return self.head(carried)


class StateOfSize(Net):
    """A scan over time, with two numbers for each channel (Mamba)."""

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        n, length, width = x.shape
        state = self.start(n, width, x)
        rates = torch.exp(-x.unsqueeze(-1) * torch.exp(self.rate))
        for time in range(length):
            state = rates[:, time] * state + x[:, time].unsqueeze(-1) * self.inner[None, None]
        return self.head(state.sum(-1))

    def start(self, n: int, width: int, x: Tensor) -> Tensor:
        return torch.zeros(n, width, 2, dtype=x.dtype, device=x.device)


class StateOfLiterals(StateOfSize):
    """Both sizes behind that of the batch are written down, as attributes of a config are."""

    def start(self, n: int, width: int, x: Tensor) -> Tensor:
        del width
        return torch.zeros(n, 5, 2, dtype=x.dtype, device=x.device)


class ShiftedSequence(Net):
    """Zeros stand in front of all channels but the last step (RWKV's token shift, by hand)."""

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        before = torch.cat([x.new_zeros(x.size(0), 5, 2), x[:, :, :-2]], 2)
        return self.head(x + before)


def _kind(cls: type[Net]) -> Kind:
    made = parts(cls, first=conv(3, 5), second=conv(5, 5, 1), head=conv(5, 4, 1))
    return kind(f"borrowed_shape_{cls.__name__.lower()}", made, IMAGE, (5,))


KINDS: tuple[Kind, ...] = (
    *(
        _kind(cls)
        for cls in (
            Borrowing, WholeShape, WholeSize, Spread, Joined, AsAnother, Counted, Sliced,
        )
    ),
    kind(
        "class_token",
        parts(
            ClassToken,
            first=linear(6, 5),
            token=lambda: torch.nn.Parameter(torch.rand(5)),
            second=linear(5, 5),
            head=linear(5, 3),
        ),
        batch(3, 6),
        (5,),
    ),
    kind(
        "summed_into_zeros",
        parts(SummedIntoZeros, first=linear(6, 5), second=linear(5, 7), head=linear(7, 3)),
        batch(3, 6),
        (5, 7),
        (7,),
    ),
    kind(
        "state_of_zeros",
        parts(StateOfZeros, first=linear(11, 5), second=linear(5, 7), head=linear(7, 3)),
        batch(3, 6),
        (5, 7),
    ),
    *(
        kind(
            name,
            parts(
                cls,
                first=linear(6, 5),
                rate=lambda: torch.nn.Parameter(torch.rand(5, 2)),
                inner=lambda: torch.nn.Parameter(torch.rand(2)),
                head=linear(5, 3),
            ),
            batch(3, 6),
            (5,),
        )
        for name, cls in (("state_of_size", StateOfSize), ("state_of_literals", StateOfLiterals))
    ),
    kind(
        "shifted_sequence",
        parts(
            ShiftedSequence,
            first=lambda: torch.nn.Conv1d(6, 5, 1),
            head=lambda: torch.nn.Conv1d(5, 3, 1),
        ),
        batch(6, 4),
        (5,),
    ),
)  # fmt: skip
