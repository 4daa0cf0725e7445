"""What the user asks for meets what can be learnt exactly."""

import pytest
import torch
from torch import Tensor, nn

import archlearn as al

BOTH = al.Learn.WIDTH | al.Learn.DEPTH


class Block(nn.Module):
    """Two layers, of which the first can be learnt."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.act, self.down = nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.act(self.up(x)))


class Net(nn.Module):
    """Two blocks with a LayerNorm between them, and a head behind an activation."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm, self.two = Block(), nn.LayerNorm(4), Block()
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(torch.relu(self.one(x)))
        return self.head(torch.relu(self.two(x)))


X = torch.zeros(3, 4)
ALL = ["one.up", "one.down", "two.up", "two.down"]


def learnt(learn: dict[str, al.Learn] | None, **options: object) -> tuple[list[str], list[str]]:
    """Return what has a width gate, and what a depth gate."""
    model = al.add_gates(Net(), X, learn=learn, **options)  # pyright: ignore[reportArgumentType]
    return list(al.width_gates(model)), list(al.depth_gates(model))


@pytest.mark.parametrize(
    ("learn", "widths", "depths"),
    [
        (None, ALL, ["one.up", "two.up", "two.down"]),
        ({"one.up": al.Learn.WIDTH}, ["one.up"], []),
        ({"one.up": BOTH}, ["one.up"], ["one.up"]),
        ({"*.up": al.Learn.WIDTH}, ["one.up", "two.up"], []),
        ({"two.*": al.Learn.WIDTH}, ["two.up", "two.down"], []),
        ({"*": BOTH}, ALL, ["one.up", "two.up", "two.down"]),
        ({"t?o.[ud]*": al.Learn.WIDTH}, ["two.up", "two.down"], []),
        ({"*": al.Learn.WIDTH, "two.*": al.Learn.NOTHING}, ["one.up", "one.down"], []),
        ({"two.*": al.Learn.NOTHING, "*": al.Learn.WIDTH}, ALL, []),
        ({"one.act": al.Learn.WIDTH}, ["one.up"], []),
    ],
)
def test_what_is_asked_for_is_learnt(
    learn: dict[str, al.Learn] | None, widths: list[str], depths: list[str]
) -> None:
    assert learnt(learn) == (widths, depths)


def test_depth_alone_is_learnt_and_compacted() -> None:
    model = al.add_gates(Net(), X, learn={"one.up": al.Learn.DEPTH})
    assert (list(al.width_gates(model)), list(al.depth_gates(model))) == ([], ["one.up"])
    with torch.no_grad():
        al.depth_gates(model)["one.up"].fill_(0.7)
    for price in al.Price:
        strengths = al.Strengths.from_width_cost(1.0, 0.5, price=price)
        assert al.penalty(model, strengths).item() == pytest.approx(0.2 * 0.21 - 0.1 * 0.7)
    small = al.compact(model)
    assert [layer.width for layer in al.read_architecture(model).layers] == [4, 6, 4, 2]
    torch.testing.assert_close(small(X + 1), model(X + 1))


def test_an_unknown_name_is_refused_with_the_one_that_was_meant() -> None:
    message = r"learn\['one.upp'\] fits no site of gates; did you mean 'one.up'"
    with pytest.raises(al.InputError, match=message):
        learnt({"one.upp": al.Learn.WIDTH})


def test_a_name_like_no_other_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(al.InputError, match=r"'zzz'\] fits no .*them: one.down, one.up"):
        learnt({"zzz": al.Learn.WIDTH})


def test_a_glob_that_fits_nothing_is_refused() -> None:
    with pytest.raises(al.InputError, match=r"learn\['three.\*'\] fits no site of gates"):
        learnt({"*.up": al.Learn.WIDTH, "three.*": al.Learn.WIDTH})


def test_the_output_layer_has_no_activation_and_is_no_site() -> None:
    with pytest.raises(al.InputError, match=r"learn\['head'\] fits no site of gates"):
        learnt({"head": al.Learn.WIDTH})


def test_a_width_that_would_not_be_exact_is_refused_with_the_reason() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.LayerNorm([3, 4]), nn.Linear(4, 2))
    message = r"width of '0', but that would not be exact: normalised .* by '2'; learn"
    with pytest.raises(al.InputError, match=message):
        al.add_gates(net, X, learn={"0": al.Learn.WIDTH})


def test_a_depth_that_could_not_merge_is_refused_with_the_reason() -> None:
    message = (
        r"depth of 'one.down', but no exact merge could follow: LayerNorm comes .*WIDTH only there"
    )
    with pytest.raises(al.InputError, match=message):
        learnt({"one.down": al.Learn.DEPTH})


def test_a_glob_takes_what_is_exact_and_leaves_the_rest() -> None:
    assert learnt({"one.*": BOTH}) == (["one.up", "one.down"], ["one.up"])


@pytest.mark.parametrize("wish", ["width", 1, None, True])
def test_a_wish_that_is_no_learn_is_refused(wish: object) -> None:
    with pytest.raises(al.InputError, match=r"learn\['one.up'\] is .*; give Learn.WIDTH"):
        learnt({"one.up": wish})  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("learn", [{}, {"*": al.Learn.NOTHING}])
def test_nothing_asked_for_is_refused(learn: dict[str, al.Learn]) -> None:
    message = r"nothing can be learnt in Net:\n  one.up \(ReLU\): not asked for in learn="
    with pytest.raises(al.InputError, match=message):
        learnt(learn)


def test_a_model_without_activations_is_refused() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    with pytest.raises(al.InputError, match="nothing can be learnt in Sequential: it calls no act"):
        al.add_gates(net, X)


def test_a_model_all_of_whose_channels_stay_is_refused_with_the_reason() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.LayerNorm([3, 4]), nn.Linear(4, 2))
    message = r"nothing can be learnt in Sequential:\n  0 \(ReLU\): normalised together"
    with pytest.raises(al.InputError, match=message):
        al.add_gates(net, X)


def test_layers_without_an_activation_are_named_with_the_reason() -> None:
    class FromAState(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.recurrent, self.head = nn.GRU(3, 5, batch_first=True), nn.Linear(5, 2)

        def forward(self, x: Tensor, state: Tensor) -> Tensor:
            return self.head(self.recurrent(x, state)[0])

    message = (
        r"nothing can be learnt in FromAState:\n  recurrent \(no activation behind it\): "
        r"'recurrent' starts from a state hx that is given.*; leave hx out"
    )
    with pytest.raises(al.InputError, match=message):
        al.add_gates(FromAState(), (torch.randn(2, 4, 3), torch.randn(1, 2, 5)))


def test_of_many_layers_that_stay_ten_are_named() -> None:
    net = nn.Sequential(*[nn.Linear(4, 4) for _ in range(30)])
    for layer in net:
        layer.register_forward_hook(lambda module, given, made: made)
    with pytest.raises(al.InputError, match=r"learnt in Sequential:(\n  .*){10}\n  and 20 more$"):
        al.add_gates(net, X)


@pytest.mark.parametrize("leaf", ["two", Block])
def test_leaves_are_not_looked_into(leaf: str | type[nn.Module]) -> None:
    net = nn.Sequential(Block(), nn.ReLU(), Block())
    if leaf == "two":
        net = nn.Sequential()
        net.add_module("one", Block())
        net.add_module("act", nn.ReLU())
        net.add_module("two", Block())
        model = al.add_gates(net, X, leaves=[leaf])
        assert list(al.width_gates(model)) == ["one.up"]
        return
    with pytest.raises(al.InputError, match="nothing can be learnt"):
        al.add_gates(net, X, leaves=[leaf])


@pytest.mark.parametrize(("leaf", "said"), [("three", "'three'"), (nn.LSTM, "LSTM")])
def test_a_leaf_that_is_not_there_is_refused(leaf: str | type[nn.Module], said: str) -> None:
    with pytest.raises(al.InputError, match=f"leaves holds {said}, but Net has no such submodule"):
        al.add_gates(Net(), X, leaves=[leaf])


def test_a_leaf_keeps_its_borders() -> None:
    """The channels between the blocks are read by the leaf, so they stay."""
    model = al.add_gates(nn.Sequential(Block(), nn.ReLU(), Block()), X, leaves=["2"])
    rows = {row.name: row for row in al.inspect(model).rows}
    assert rows["0.up"].width
    assert not rows["0.down"].width
    assert "2" in rows["0.down"].reason


class Data(nn.Module):
    """A module whose path depends on the data."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) if x.sum() > 0 else -self.layer(x)


def test_a_part_that_depends_on_data_becomes_a_leaf() -> None:
    model = al.add_gates(nn.Sequential(Block(), nn.ReLU(), Data()), X)
    assert list(al.width_gates(model)) == ["0.up"]
    assert "2" in al.inspect(model).opaque


def test_a_model_that_depends_on_data_is_refused_with_the_line() -> None:
    message = r"cannot follow the forward of Data: .*test_selection.py:\d+ `return self.layer\(x\)"
    with pytest.raises(al.TracingError, match=message):
        al.add_gates(Data(), X)


def test_products_written_by_hand_are_to_become_layers() -> None:
    class Product(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.into, self.out = nn.Parameter(torch.ones(3, 4)), nn.Parameter(torch.ones(4, 2))

        def forward(self, x: Tensor) -> Tensor:
            hidden = torch.relu(torch.einsum("ni,ij->jn", x, self.into).T)
            return torch.einsum("ni,ij->jn", hidden, self.out).T

    with pytest.raises(al.InputError, match=r"a product written by hand .* an nn.Linear"):
        al.add_gates(Product(), torch.ones(2, 3))


def test_where_no_layer_is_learnt_nobody_is_told_that_nothing_is_needed() -> None:
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Softmax(-1), nn.Linear(16, 4))
    with pytest.raises(al.InputError, match="mix channels; put a linear layer or") as refused:
        al.add_gates(net, torch.randn(2, 8))
    assert "nothing is needed" not in str(refused.value)
