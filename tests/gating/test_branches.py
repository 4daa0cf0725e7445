"""Residual branches have gates; a closed one is left out exactly, with all that only it needs."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import archlearn as al
import archlearn_cli as cli
from benchmarks.torchvision_import import import_models


class Block(nn.Module):
    """`act(x + scale · f(x))`, with a projection where sizes change."""

    def __init__(self, n_in: int, n_out: int, scale: float = 1.0) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(n_in, n_out), nn.Linear(n_out, n_out)
        self.norm = nn.BatchNorm1d(n_out)
        self.shortcut = nn.Linear(n_in, n_out) if n_in != n_out else nn.Identity()
        self.scale = nn.Parameter(torch.full((n_out,), scale))

    def forward(self, x: Tensor) -> Tensor:
        y = self.scale * self.norm(self.second(F.relu(self.first(x))))
        return F.relu(self.shortcut(x) + y)


class Net(nn.Module):
    """Two blocks, the first with a projection."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two = Block(4, 6), Block(6, 6, scale)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.two(self.one(x)))


class Denoiser(nn.Module):
    """Adds to its input all that its layers compute (DnCNN, super-resolution)."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        layers = (nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
        self.body = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


def batch(n: int = 5) -> Tensor:
    return torch.randn(n, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.fixture
def gated() -> nn.Module:
    return al.add_gates(Net().double().eval(), batch())


@torch.no_grad()
def close_(model: nn.Module, *names: str) -> None:
    for name in names:
        al.branch_gates(model)[name].fill_(0.0)


def agree(one: nn.Module, two: nn.Module, *args: Any, **kwargs: Any) -> bool:
    with torch.no_grad():
        first, second = one.eval()(*args, **kwargs), two.eval()(*args, **kwargs)
    return bool((first - second).abs().max() <= 1e-10 * first.abs().max())


def test_a_branch_is_named_after_its_block_and_starts_open(gated: nn.Module) -> None:
    assert list(al.branch_gates(gated)) == ["one", "two"]
    assert all(gate.item() > 0.5 for gate in al.branch_gates(gated).values())
    keys = [key for key in gated.state_dict() if ".branch." in key]
    assert keys == ["archlearn_gates.branch.one", "archlearn_gates.branch.two"]
    assert agree(gated, Net().double(), batch())


def test_a_closed_block_is_gone_with_its_norm_and_its_scale(gated: nn.Module) -> None:
    close_(gated, "two")
    plan = al.plan(gated)
    small = al.compact(gated, plan=plan)
    assert agree(gated, small, batch(7))
    assert plan.branches == ("two",)
    assert {name.split(".")[0] for name in plan.removed} == {"two"}
    assert not any(name.startswith("two.") for name in small.state_dict())
    assert type(small.get_submodule("two.first")) is nn.Identity
    assert al.count_costs(small, batch()) == plan.after
    assert "two: branch left out" in str(plan)


class AskingBlock(Block):
    """It asks for a size inside, as attention of transformers does."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        if y.dim() > 1:
            y = F.relu(y)
        return self.shortcut(x) + self.second(y)


def test_a_layer_that_is_asked_for_its_size_goes_with_its_branch() -> None:
    net = Net().double()
    net.two = AskingBlock(6, 6).double()
    model = al.add_gates(net.eval(), batch())
    close_(model, "two")
    assert "two.first.weight" in al.plan(model).removed
    assert agree(model, al.compact(model), batch(3))


def test_a_projection_is_the_shortcut_and_stays(gated: nn.Module) -> None:
    close_(gated, "one")
    small = al.compact(gated)
    assert agree(gated, small, batch(7))
    left = {name for name in small.state_dict() if name.startswith("one.")}
    assert left == {"one.shortcut.weight", "one.shortcut.bias"}


def test_a_closed_branch_leaves_files_and_architecture_alike(
    gated: nn.Module, tmp_path: Path
) -> None:
    close_(gated, "two")
    names = [layer.name for layer in al.read_architecture(gated).layers]
    assert names == ["one.first", "one.second", "one.shortcut", "head"]
    al.save(al.compact(gated), tmp_path / "small.safetensors")
    assert agree(gated, al.load(tmp_path / "small.safetensors"), batch(7))
    plan = al.plan(gated)
    assert al.Plan.from_json(plan.to_json()) == plan


def test_gates_learn_in_training_mode_and_a_closed_one_still_has_a_gradient(
    gated: nn.Module,
) -> None:
    close_(gated, "two")
    gated.train()(batch(16)).square().sum().backward()
    gradients = [gate.grad for gate in al.branch_gates(gated).values()]
    assert all(gradient is not None and gradient.item() != 0 for gradient in gradients)


def test_a_branch_gate_costs_depth_and_its_neurons_cost_nothing_once_it_is_closed() -> None:
    model = al.add_gates(Net().double().eval(), batch())
    strengths = al.Strengths(width_cost=1.0, width_binarise=0.0, depth_cost=10.0)
    with torch.no_grad():
        for gate in al.width_gates(model).values():
            gate.fill_(1.0)
        for find in (al.depth_gates, al.branch_gates):
            for gate in find(model).values():
                gate.fill_(0.0 if find is al.depth_gates else 1.0)
    whole = al.penalty(model, strengths).item()
    close_(model, "two")
    freed = len(al.width_gates(model)["two.first"])
    assert whole - al.penalty(model, strengths).item() >= 10.0 + freed


def test_learn_names_branches(gated: nn.Module) -> None:
    model = al.add_gates(Net().double().eval(), batch(), learn={"two": al.Learn.DEPTH})
    assert list(al.branch_gates(model)) == ["two"]
    assert not al.width_gates(model)
    widths = al.add_gates(Net().double().eval(), batch(), learn={"*": al.Learn.WIDTH})
    assert not al.branch_gates(widths)
    with pytest.raises(al.InputError, match="'two' is a branch, which has none"):
        al.add_gates(Net().double().eval(), batch(), learn={"two": al.Learn.WIDTH})
    assert "branch two: learnt: two.first, two.second" in str(al.inspect(gated))


def head() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))


class InPlace(nn.Module):
    """The branch changes x itself, so that it cannot be left out."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.inner, self.head = nn.Linear(4, 6), nn.Linear(6, 6), head()

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        x = x + self.inner(F.relu(x, inplace=True))
        return self.head(F.relu(x))


class ReadAgain(nn.Module):
    """The sum is changed in place, and x is read again behind that."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.inner, self.head = nn.Linear(4, 6), nn.Linear(6, 6), head()

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        y = F.relu(x + self.inner(x), inplace=True)
        return self.head(y + x)


@pytest.mark.parametrize(
    ("net", "why"), [(InPlace, "changes what is read elsewhere"), (ReadAgain, "changed in place")]
)
def test_a_branch_that_memory_depends_on_has_no_gate(net: type[nn.Module], why: str) -> None:
    model = al.add_gates(net().double().eval(), batch())
    assert not al.branch_gates(model)
    assert why in str(al.inspect(model))
    with pytest.raises(al.InputError, match="leaving it out would not be exact"):
        al.add_gates(net().double().eval(), batch(), learn={"inner": al.Learn.DEPTH})


class Messages(nn.Module):
    """Messages are summed in place into zeros, by places that stand in an input."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.inner, self.head = nn.Linear(4, 6), nn.Linear(6, 6), head()

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        x = F.relu(self.enter(x))
        start, end = edges
        return self.head(x + self.inner(torch.zeros_like(x).index_add_(0, end, x[start])))


def test_a_branch_may_fill_memory_of_its_own_in_place() -> None:
    given = batch(), torch.tensor([[0, 1, 1], [1, 0, 2]])
    model = al.add_gates(Messages().double().eval(), given)
    (gate,) = al.branch_gates(model).values()
    with torch.no_grad():
        gate.fill_(0.1)
    small = al.compact(model)
    torch.testing.assert_close(small(*given), model(*given), rtol=0, atol=1e-12)
    assert not [name for name, _ in small.named_parameters() if name.startswith("inner")]


class Sums(nn.Module):
    """Additions without a branch: positions, other shapes, towers of as many layers."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.randn(4))
        self.left, self.right, self.wide = nn.Linear(4, 6), nn.Linear(4, 6), nn.Linear(6, 1)
        self.head = head()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.positions
        x = F.relu(self.left(x) + self.right(x))
        return self.head(x + self.wide(F.relu(x)))


def test_other_additions_have_no_branch() -> None:
    assert not al.branch_gates(al.add_gates(Sums().double().eval(), batch()))


BUILT_IN = ("resnet20", "preresnet20", "vit", "mobilenetv2", "mixer", "gpt")


@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in_networks_lose_every_other_branch_exactly(name: str) -> None:
    torch.manual_seed(0)
    if name == "gpt":
        net, x = cli.models.build_network("gpt:0.25", (16,), 65), torch.randint(65, (2, 16))
    else:
        net, x = cli.models.build_network(name, (3, 16, 16), 10), torch.randn(2, 3, 16, 16)
    gated = al.add_gates(net.eval(), x)
    names = list(al.branch_gates(gated))
    assert len(names) >= 8
    close_(gated, *names[::2])
    plan = al.plan(gated)
    small = al.compact(gated, plan=plan)
    assert al.count_costs(small, x) == plan.after
    assert list(plan.branches) == names[::2]


def close_half_and_compact(net: nn.Module, x: Any) -> tuple[list[str], nn.Module]:
    gated = al.add_gates(net.eval(), x)
    names = list(al.branch_gates(gated))
    close_(gated, *names[1::2])
    return names, al.compact(gated)


@pytest.mark.skipif(find_spec("torchvision") is None, reason="torchvision is not installed")
def test_a_resnet18_of_torchvision_loses_blocks() -> None:
    torch.manual_seed(0)
    net = import_models().resnet18(num_classes=5)
    names, small = close_half_and_compact(net, torch.randn(2, 3, 64, 64))
    assert names == [f"layer{i}.{j}" for i in (1, 2, 3, 4) for j in (0, 1)]
    assert not any(name.startswith("layer2.1") for name in small.state_dict())


@pytest.mark.skipif(find_spec("timm") is None, reason="timm is not installed")
def test_a_vision_transformer_of_timm_with_layer_scale_and_drop_path_loses_branches() -> None:
    import_models()  # timm imports torchvision
    from timm.models.vision_transformer import VisionTransformer

    torch.manual_seed(0)
    net = VisionTransformer(
        img_size=16, patch_size=8, embed_dim=16, depth=3, num_heads=2, num_classes=4,
        init_values=1e-5, drop_path_rate=0.2,
    )  # fmt: skip
    names, small = close_half_and_compact(net, torch.randn(2, 3, 16, 16))
    assert names == [f"blocks.{i}.{part}" for i in range(3) for part in ("attn", "mlp")]
    left = small.state_dict()
    assert "blocks.0.ls1.gamma" in left
    assert not any(name.startswith(("blocks.0.mlp", "blocks.0.norm2")) for name in left)
    small.train()(torch.randn(2, 3, 16, 16)).sum().backward()


@pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed")
def test_a_bert_keeps_the_norms_behind_its_additions() -> None:
    if find_spec("torchvision") is not None:
        import_models()  # which transformers imports in its turn
    import transformers

    hf: Any = transformers
    torch.manual_seed(0)
    config = hf.BertConfig(
        vocab_size=30, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=24, max_position_embeddings=16,
    )  # fmt: skip
    tokens = {"input_ids": torch.randint(30, (2, 7))}
    names, small = close_half_and_compact(hf.BertForSequenceClassification(config), tokens)
    assert names == [
        f"bert.encoder.layer.{i}{part}" for i in range(2) for part in (".attention", "")
    ]
    left = [name for name in small.state_dict() if name.startswith("bert.encoder.layer.0.")]
    assert "bert.encoder.layer.0.output.LayerNorm.weight" in left
    assert not any(".intermediate." in name or ".output.dense" in name for name in left
                   if ".attention." not in name)  # fmt: skip


class PadsASum(nn.Module):
    """A residual block whose sum is padded with channels of zeros, as option-A shortcuts are."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.first, self.second = (nn.Conv2d(4, n, 1) for n in (4, 4, 8))
        self.head = nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        x = x + self.first(F.relu(x))
        x = F.pad(x, (0, 0, 0, 0, 2, 2)) + self.second(x)
        return self.head(F.relu(x))


def test_a_closed_block_in_front_of_padded_channels_goes_together_with_channels() -> None:
    """The call that pads then reads the stream itself, of which it must know what stays."""
    images = torch.randn(2, 4, 3, 3, dtype=torch.float64)
    gated = al.add_gates(PadsASum().double().eval(), images)
    with torch.no_grad():
        for gate in (*al.branch_gates(gated).values(), *al.width_gates(gated).values()):
            gate.view(-1)[0] = 0.1
    small = al.compact(gated)
    torch.testing.assert_close(small(images), gated(images), rtol=0, atol=1e-10)


def test_a_branch_with_all_layers_has_no_gate() -> None:
    """Once it had closed no weight was left to learn, and the backward pass failed."""
    model = al.add_gates(Denoiser(), batch().float())
    assert not al.branch_gates(model)
    assert "it holds all layers of the model" in str(al.inspect(model))
    gates = al.GateOptimizer(model, total_steps=20, budget={"parameters": "8%"})
    optimizer = torch.optim.AdamW(al.weights(model))
    for _ in range(20):
        x = torch.randn(8, 4)
        (model(x) - x.roll(1, 1)).square().mean().backward()
        optimizer.step(), optimizer.zero_grad()
        gates.step(), gates.zero_grad()
        if gates.can_shrink():
            al.shrink_(model, optimizer, gates)
    n_left = sum(p.numel() for p in al.compact(model).parameters())
    assert 0 < n_left <= 0.08 * sum(p.numel() for p in Denoiser().parameters())


class Dense(nn.Module):
    """Joins what a block returns with what it was added to, as YOLO's C2f does."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(2, 8, 1), nn.Conv2d(12, 2, 1)
        self.block = nn.Sequential(nn.Conv2d(4, 4, 1), nn.ReLU(), nn.Conv2d(4, 4, 1))

    def forward(self, x: Tensor) -> Tensor:
        one, two = torch.relu(self.first(x)).chunk(2, 1)
        return self.last(torch.cat([one, two + self.block(two), two], 1))


def test_a_sum_that_is_read_beside_what_it_was_added_to_loses_its_branch() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 2, 4, 4, dtype=torch.float64)
    gated = al.add_gates(Dense().double(), x)
    with torch.no_grad():
        al.branch_gates(gated)["block"].fill_(0.0)
        al.width_gates(gated)["first"][::3] = 0.0
    small = al.compact(gated)
    torch.testing.assert_close(small(x), gated(x), rtol=1e-10, atol=1e-10)
    assert not any(True for _ in small.block.parameters())
