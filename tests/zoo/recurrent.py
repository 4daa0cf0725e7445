"""Recurrent layers: what they read, and what reads them."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.zoo.kinds import Kind, Net, batch, kind, parts
from tests.zoo.layers import conv, linear

SEQUENCE = batch(5, 6)


def tokens() -> Tensor:
    return torch.randint(0, 9, (4, 5))


class Recurrent(Net):
    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x))
        y, _ = self.recurrent(x)
        return self.head(F.relu(self.second(y[:, -1])))


class OfImages(Net):
    """A CRNN: columns of an image are read one by one."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(F.relu(self.first(x))).mean(2)
        y, _ = self.recurrent(x.permute(2, 0, 1))
        return self.head(y).permute(1, 0, 2)


class OfTokens(Net):
    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.recurrent(self.words(x))
        return self.head(y[:, -1])


class LastStates(Net):
    def forward(self, x: Tensor) -> Tensor:
        _, (h, _) = self.recurrent(self.words(x))
        return self.head(torch.cat([h[-2], h[-1]], dim=1))


class BothEnds(Net):
    """What either direction has come to when it has read all."""

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.recurrent(x)
        return self.head(torch.cat([y[:, -1, :7], y[:, 0, 7:]], dim=1))


class Cells(Net):
    def forward(self, x: Tensor) -> Tensor:
        _, (h, c) = self.recurrent(x)
        return self.head(F.relu(self.second(torch.cat([h[0], c[0]], dim=-1))))


class FromState(Net):
    """A decoder goes on from what an encoder has come to."""

    def forward(self, x: Tensor) -> Tensor:
        _, state = self.encoder(x)
        y, _ = self.decoder(F.relu(self.first(x)), state)
        return self.head(y)


class FromStart(Net):
    """It starts from a state that it learns."""

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.recurrent(x, self.start.expand(-1, x.shape[1], -1).contiguous())
        return self.head(y)


class FromZeros(Net):
    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.recurrent(F.relu(self.first(x)), torch.zeros(1, x.shape[1], 7).to(x))
        return self.head(y)


class AllFromZeros(Net):
    """A state for each layer and direction is made in `forward`."""

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x))
        h = torch.zeros(4, x.size(0), self.recurrent.hidden_size, dtype=x.dtype, device=x.device)
        y, _ = self.recurrent(x, (h, x.new_zeros(4, x.size(0), 7)))
        return self.head(y)


class ConvLSTM(Net):
    """Its states begin with zeros of images of a size that is written down."""

    def forward(self, x: Tensor) -> Tensor:
        h = c = torch.zeros(x.size(0), 5, 6, 6, dtype=x.dtype, device=x.device)
        for step in x.unbind(1):
            i, f, o, g = self.cell(torch.cat([step, h], 1)).chunk(4, 1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
        return self.head(h)


class Residual(Net):
    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x = x + self.recurrent(x)[0]
        return self.head(x + self.recurrent(x)[0])


KINDS: tuple[Kind, ...] = (
    kind(
        "lstm",
        parts(
            Recurrent,
            first=linear(6, 5),
            recurrent=lambda: nn.LSTM(5, 4, batch_first=True),
            second=linear(4, 7),
            head=linear(7, 3),
        ),
        SEQUENCE,
        (5, 4, 7),
        (7,),
    ),
    kind(
        "gru",
        parts(
            Recurrent,
            first=linear(6, 5),
            recurrent=lambda: nn.GRU(5, 4, 2, batch_first=True, bidirectional=True),
            second=linear(8, 7),
            head=linear(7, 3),
        ),
        SEQUENCE,
        (5, 4, 7),
        (7,),
    ),
    kind(
        "crnn",
        parts(
            OfImages,
            first=conv(3, 5),
            norm=lambda: nn.BatchNorm2d(5),
            recurrent=lambda: nn.LSTM(5, 7, bias=False),
            head=linear(7, 3),
        ),
        batch(3, 8, 8),
        (5, 7),
    ),
    kind(
        "bilstm_of_tokens",
        parts(
            OfTokens,
            words=lambda: nn.Embedding(9, 5),
            recurrent=lambda: nn.LSTM(5, 7, 2, batch_first=True, bidirectional=True, dropout=0.2),
            head=linear(14, 3),
        ),
        tokens,
        (5, 7),
    ),
    kind(
        "bilstm_last_states",
        parts(
            LastStates,
            words=lambda: nn.Embedding(9, 5),
            recurrent=lambda: nn.LSTM(5, 7, 2, batch_first=True, bidirectional=True),
            head=linear(14, 3),
        ),
        tokens,
        (5, 7),
    ),
    kind(
        "bigru_both_ends",
        parts(
            BothEnds,
            recurrent=lambda: nn.GRU(6, 7, batch_first=True, bidirectional=True),
            head=linear(14, 3),
        ),
        SEQUENCE,
        (7,),
        note="an index beside a slice of channels",
    ),
    kind(
        "lstm_without_a_batch",
        parts(
            Cells,
            recurrent=lambda: nn.LSTM(6, 5),
            second=linear(10, 7),
            head=linear(7, 3),
        ),
        SEQUENCE,
        (5, 7),
        (7,),
        note="its cells are read, too",
    ),
    kind(
        "lstm_from_the_state_of_another",
        parts(
            FromState,
            encoder=lambda: nn.LSTM(6, 7),
            first=linear(6, 5),
            decoder=lambda: nn.LSTM(5, 7),
            head=linear(7, 3),
        ),
        SEQUENCE,
        (5, 7),
    ),
    kind(
        "gru_from_a_learnt_state",
        parts(
            FromStart,
            start=lambda: nn.Parameter(torch.randn(1, 1, 7)),
            recurrent=lambda: nn.GRU(6, 7),
            head=linear(7, 3),
        ),
        SEQUENCE,
        (7,),
    ),
    kind(
        "rnn_from_zeros",
        parts(
            FromZeros,
            first=linear(6, 5),
            recurrent=lambda: nn.RNN(5, 7, nonlinearity="relu"),
            head=linear(7, 3),
        ),
        SEQUENCE,
        (5, 7),
    ),
    kind(
        "bilstm_of_layers_from_zeros",
        parts(
            AllFromZeros,
            first=linear(6, 5),
            recurrent=lambda: nn.LSTM(5, 7, 2, batch_first=True, bidirectional=True),
            head=linear(14, 3),
        ),
        SEQUENCE,
        (5, 7),
    ),
    kind(
        "conv_lstm",
        parts(ConvLSTM, cell=conv(8, 20), head=conv(5, 3)),
        batch(2, 3, 6, 6),
        (5,),
    ),
    kind(
        "lstm_with_projections",
        parts(
            Recurrent,
            first=linear(6, 5),
            recurrent=lambda: nn.LSTM(5, 6, proj_size=4, batch_first=True),
            second=linear(4, 7),
            head=linear(7, 3),
        ),
        SEQUENCE,
        (5, 4, 7),
        (7,),
    ),
    kind(
        "gru_called_twice_in_a_stream",
        parts(
            Residual,
            first=linear(6, 5),
            recurrent=lambda: nn.GRU(5, 5),
            head=linear(5, 3),
        ),
        SEQUENCE,
        (5,),
    ),
)
