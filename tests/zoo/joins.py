"""Where channels meet: concatenations, skips, products, maxima."""

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.zoo.kinds import Kind, Net, batch, kind, parts
from tests.zoo.layers import conv, linear, norm

IMAGE = batch(3, 8, 8)


class Concat(Net):
    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([F.relu(self.first(x)), F.relu(self.second(x)), x], dim=1)
        return self.head(F.relu(self.mix(x)))


class ConcatThenNorm(Net):
    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat((F.relu(self.first(x)), F.relu(self.second(x))), 1)
        x = F.max_pool2d(F.relu(self.norm(x)), 2)
        return self.head(torch.flatten(x, 1))


class DenseBlock(Net):
    def forward(self, x: Tensor) -> Tensor:
        features = [F.relu(self.stem(x))]
        features.append(F.relu(self.first(torch.cat(features, 1))))
        features.append(F.relu(self.second(torch.cat(features, 1))))
        return self.head(torch.cat(features, 1))


class UNet(Net):
    def forward(self, x: Tensor) -> Tensor:
        skip = F.relu(self.down(x))
        x = F.relu(self.bottom(F.max_pool2d(skip, 2)))
        x = torch.cat([skip, self.up(x)], dim=1)
        return self.head(F.relu(self.merge(x)))


class SqueezeExcite(Net):
    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        scale = F.adaptive_avg_pool2d(x, 1)
        scale = torch.sigmoid(self.excite(F.relu(self.squeeze(scale))))
        return self.head(scale * x)


class SqueezeExciteLinear(Net):
    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        scale = self.excite(F.relu(self.squeeze(x.mean((2, 3))))).sigmoid()
        return self.head(x * scale[:, :, None, None])


class ProductOfSites(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.first(x)) * torch.tanh(self.second(x)))


class Maximum(Net):
    def forward(self, x: Tensor) -> Tensor:
        x = torch.maximum(F.relu(self.first(x)), F.relu(self.second(x)))
        return self.head(x)


class MaxFeatureMap(Net):
    """LightCNN's activation: the larger of two halves."""

    def forward(self, x: Tensor) -> Tensor:
        x = torch.max(*self.first(x).split(5, 1))
        x, y = self.second(x).chunk(2, 1)
        return self.head(x.min(y))


class PairwiseDots(Net):
    """DLRM: features of each kind, and the products of every two of them."""

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        x = F.relu(self.first(x))
        rows = torch.stack([x, self.one(tokens[:, 0]), self.two(tokens[:, :2])], 1)
        dots = torch.bmm(rows, rows.transpose(1, 2))
        one, two = torch.triu_indices(3, 3, 1, device=x.device)
        return self.head(torch.cat([x, dots[:, one, two]], 1))


class CrossedFeatures(Net):
    """xDeepFM: all products of two kinds of features, mixed at each place of their embeddings."""

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x))
        y = F.relu(self.mix(x))
        z = x.unsqueeze(2) * y.unsqueeze(1)
        return self.head(F.relu(self.second(z.view(-1, 21, z.shape[-1]))).sum(2))


class OuterProduct(Net):
    """Every channel of one tensor times every one of another."""

    def forward(self, x: Tensor) -> Tensor:
        x, y = F.relu(self.first(x)), F.relu(self.second(x))
        return self.head((x.unsqueeze(2) * y.unsqueeze(1)).view(-1, 35, 8, 8))


class Stack(Net):
    def forward(self, x: Tensor) -> Tensor:
        x = torch.stack([F.relu(self.first(x)), F.relu(self.second(x))]).sum(0)
        return self.head(F.relu(self.third(x)))


KINDS: tuple[Kind, ...] = (
    kind(
        "concat",
        parts(Concat, first=conv(3, 5), second=conv(3, 6), mix=conv(14, 7), head=conv(7, 4)),
        IMAGE,
        (5, 6, 7),
    ),
    kind(
        "concat_then_norm",
        parts(
            ConcatThenNorm,
            first=conv(3, 5),
            second=conv(3, 6),
            norm=norm(11),
            head=linear(176, 4),
        ),
        IMAGE,
        (5, 6, 11),
        note="the site behind the norm holds the channels of both sites in front",
    ),
    kind(
        "dense_block",
        parts(DenseBlock, stem=conv(3, 5), first=conv(5, 6), second=conv(11, 7), head=conv(18, 4)),
        IMAGE,
        (5, 6, 7),
    ),
    kind(
        "unet",
        parts(
            UNet,
            down=conv(3, 5),
            bottom=conv(5, 7),
            up=lambda: torch.nn.Upsample(scale_factor=2),
            merge=conv(12, 6),
            head=conv(6, 4, 1),
        ),
        IMAGE,
        (5, 6, 7),
        (6,),
    ),
    kind(
        "unet_bilinear",
        parts(
            UNet,
            down=conv(3, 5),
            bottom=conv(5, 7),
            up=lambda: torch.nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True),
            merge=conv(12, 6),
            head=conv(6, 4),
        ),
        IMAGE,
        (5, 6, 7),
    ),
    kind(
        "squeeze_excite",
        parts(
            SqueezeExcite,
            stem=conv(3, 7),
            squeeze=conv(7, 5, 1),
            excite=conv(5, 7, 1),
            head=conv(7, 4),
        ),
        IMAGE,
        (7, 5),
        (5,),
    ),
    kind(
        "squeeze_excite_linear",
        parts(
            SqueezeExciteLinear,
            stem=conv(3, 7),
            squeeze=linear(7, 5),
            excite=linear(5, 7),
            head=conv(7, 4),
        ),
        IMAGE,
        (7, 5),
        (5,),
    ),
    kind(
        "product_of_sites",
        parts(ProductOfSites, first=conv(3, 5), second=conv(3, 5), head=conv(5, 4)),
        IMAGE,
        (5,),
    ),
    kind(
        "maximum_of_sites",
        parts(Maximum, first=conv(3, 5), second=conv(3, 5), head=conv(5, 4)),
        IMAGE,
        (5,),
    ),
    kind(
        "max_feature_map",
        parts(MaxFeatureMap, first=conv(3, 10), second=conv(5, 14), head=conv(7, 4)),
        IMAGE,
        (5, 7),
    ),
    kind(
        "pairwise_dots",
        parts(
            PairwiseDots,
            first=linear(6, 5),
            one=lambda: torch.nn.Embedding(9, 5),
            two=lambda: torch.nn.EmbeddingBag(8, 5),
            head=linear(8, 4),
        ),
        lambda: (torch.randn(4, 6), torch.randint(0, 8, (4, 3))),
        (5,),
    ),
    kind(
        "crossed_features",
        parts(
            CrossedFeatures,
            first=linear(6, 5),
            mix=lambda: torch.nn.Conv1d(3, 7, 1),
            second=lambda: torch.nn.Conv1d(21, 8, 1),
            head=linear(8, 4),
        ),
        batch(3, 6),
        (7, 8),
    ),
    kind(
        "outer_product",
        parts(OuterProduct, first=conv(3, 5), second=conv(3, 7), head=conv(35, 4, 1)),
        IMAGE,
        (7,),
        note="the wider one's channels pass; of the other one all stay",
    ),
    kind(
        "stack_then_sum",
        parts(Stack, first=conv(3, 5), second=conv(3, 5), third=conv(5, 7), head=conv(7, 4)),
        IMAGE,
        (5, 7),
        note="a sum over a dimension that held channels of two layers ties them one by one",
    ),
)
