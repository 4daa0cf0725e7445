"""Programs that broke a law once: the thorough profile found them."""

import pytest
import torch
from torch import nn

import archlearn as al
from tests.laws import checking
from tests.laws.programs import Block, Gates, Program

# Running statistics moved while a trace was rehearsed in training mode.
STATISTICS = [
    (
        Program(
            shape=(3, 5),
            blocks=(
                Block("plain", 3, (52, 239, 115, 224, 189, 30, 61, 134, 121, 68)),
                Block("across", 6, (110, 238, 3, 190, 8, 235, 1, 79, 239, 178)),
                Block("selected", 3, (115, 196, 124, 113, 202, 35, 223, 160, 47, 172)),
                Block("across", 2, (194, 197, 39, 159, 102, 191, 146, 191, 100, 161)),
                Block("functional", 5, (215, 167, 76, 214, 130, 232, 35, 89, 131, 234)),
            ),
            head=Block("head", 5, (14, 223, 239, 178, 239, 64, 228, 123, 0, 173)),
            seed=1217043101,
        ),
        Gates(closed=0, whole=10, linear=7, seed=255),
    ),
    (
        Program(
            shape=(1, 8, 8),
            blocks=(
                Block("residual", 2, (58, 54, 88, 131, 86, 63, 45, 26, 136, 234)),
                Block("pair", 3, (184, 160, 77, 16, 89, 185, 93, 115, 107, 159)),
                Block("scaled", 1, (16, 229, 85, 100, 98, 10, 227, 200, 127, 118)),
                Block("selected", 5, (79, 44, 18, 0, 233, 229, 98, 210, 26, 161)),
                Block("selected", 6, (74, 83, 165, 148, 188, 56, 52, 164, 130, 187)),
            ),
            head=Block("head", 5, (50, 6, 218, 239, 25, 34, 0, 219, 239, 237)),
            seed=263203436,
        ),
        Gates(closed=9, whole=10, linear=5, seed=1333),
    ),
    (
        Program(
            shape=(3, 6, 5),
            blocks=(
                Block("pair", 2, (64, 27, 189, 23, 189, 224, 175, 151, 100, 225)),
                Block("across_norm", 4, (64, 27, 189, 23, 182, 224, 175, 151, 100, 225)),
                Block("skip", 1, (70, 222, 100, 226, 220, 13, 144, 117, 149, 212)),
                Block("selected", 1, (223, 47, 67, 68, 238, 80, 180, 129, 205, 192)),
                Block("excite", 4, (141, 157, 180, 239, 147, 10, 120, 155, 170, 51)),
            ),
            head=Block("head", 3, (0, 39, 5, 103, 55, 104, 85, 172, 214, 239)),
            seed=794326163,
        ),
        Gates(closed=1, whole=2, linear=7, seed=23695),
    ),
    (
        Program(
            shape=(3, 5),
            blocks=(
                Block("plain", 1, (226, 89, 86, 22, 134, 239, 178, 44, 109, 18)),
                Block("pixels", 4, (5, 140, 137, 211, 10, 79, 153, 64, 239, 237)),
                Block("concat", 5, (84, 58, 234, 180, 102, 99, 9, 175, 87, 199)),
                Block("selected", 5, (7, 6, 119, 130, 89, 171, 135, 23, 71, 108)),
                Block("concat", 3, (169, 58, 227, 238, 219, 75, 166, 232, 96, 197)),
            ),
            head=Block("head", 4, (74, 75, 49, 85, 116, 239, 0, 122, 37, 233)),
            seed=2483999332,
        ),
        Gates(closed=2, whole=0, linear=6, seed=39998),
    ),
    (
        Program(
            shape=(2, 6),
            blocks=(
                Block("residual", 5, (0, 176, 208, 119, 99, 65, 134, 99, 5, 200)),
                Block("scaled", 4, (195, 62, 151, 187, 217, 225, 14, 136, 8, 61)),
                Block("selected", 3, (91, 55, 214, 68, 30, 234, 219, 237, 228, 85)),
            ),
            head=Block("head", 3, (96, 188, 38, 145, 14, 55, 96, 156, 75, 235)),
            seed=2478554401,
        ),
        Gates(closed=7, whole=10, linear=0, seed=52),
    ),
    (
        Program(
            shape=(2, 6),
            blocks=(
                Block("pair", 4, (203, 17, 34, 23, 117, 5, 173, 96, 152, 55)),
                Block("selected", 5, (103, 163, 216, 181, 229, 194, 45, 160, 64, 40)),
                Block("plain", 3, (35, 83, 216, 197, 111, 21, 194, 77, 57, 38)),
                Block("meeting", 2, (22, 218, 14, 196, 2, 226, 79, 134, 134, 85)),
                Block("transformer", 5, (42, 221, 172, 3, 101, 183, 91, 49, 168, 185)),
            ),
            head=Block("head", 4, (130, 129, 143, 130, 41, 149, 111, 86, 231, 98)),
            seed=0,
        ),
        Gates(closed=9, whole=0, linear=1, seed=214320077),
    ),
]

# Weights that are computed had no price in multiply-adds: it was 0 / 0.
COMPUTED = (
    Program(
        shape=(2, 7, 7),
        blocks=(
            Block("plain", 2, (172, 100, 159, 47, 235, 150, 108, 106, 16, 1)),
            Block("plain", 6, (84, 64, 139, 137, 169, 128, 23, 122, 187, 38)),
            Block("plain", 2, (84, 64, 139, 137, 169, 128, 23, 122, 187, 38)),
            Block("local_response", 5, (138, 75, 76, 12, 63, 127, 79, 111, 224, 163)),
            Block("pixels", 3, (84, 64, 139, 137, 169, 128, 23, 122, 187, 38)),
        ),
        head=Block("head", 2, (185, 55, 78, 128, 29, 207, 10, 45, 90, 137)),
        seed=178,
    ),
    Gates(closed=0, whole=0, linear=3, seed=335),
)


@pytest.mark.parametrize(("program", "gates"), STATISTICS)
def test_gates_as_they_start_change_nothing(program: Program, gates: Gates) -> None:
    checking.check_open(program, gates)


@pytest.mark.parametrize(("program", "gates"), STATISTICS)
def test_compacting_twice_is_compacting_once(program: Program, gates: Gates) -> None:
    checking.check_twice(program, gates)


def test_the_penalty_has_the_gradient_of_small_differences() -> None:
    checking.check_penalty(*COMPUTED)


# What a cut leaves of a roll is a selection by an index of the model's own.
ROLLED = Program(
    shape=(2, 6, 6),
    blocks=(Block("plain", 3, (0,) * 10), Block("shuffle", 2, (112, *(0,) * 9))),
    head=Block("head", 2, (0,) * 10),
    seed=0,
)


def test_a_model_is_cut_once_more_behind_a_selection() -> None:
    checking.check_shrink(ROLLED, Gates(0, 10, 0, 0))


# A branch is closed, and its sum was read by a shortcut that pads with zeros.
PADDED = [
    (
        Program(
            shape=(2, 6, 6),
            blocks=(
                Block("halves", 5, (125, 21, 70, 41, 207, 84, 47, 56, 181, 95)),
                Block("residual", 5, (218, 46, 174, 188, 154, 170, 131, 238, 152, 150)),
            ),
            head=Block("head", 1, (218, 46, 174, 188, 154, 170, 131, 238, 152, 150)),
            seed=60848,
        ),
        Gates(closed=10, whole=0, linear=3, seed=4861),
    ),
    (
        Program(
            shape=(2, 7, 7),
            blocks=(
                Block("halves", 4, (43, 236, 177, 71, 6, 149, 212, 225, 200, 116)),
                Block("residual", 3, (200, 90, 239, 238, 53, 87, 137, 29, 157, 178)),
                Block("transposed", 3, (200, 177, 13, 195, 150, 238, 114, 113, 235, 81)),
                Block("residual", 1, (65, 170, 184, 224, 200, 25, 147, 208, 132, 192)),
                Block("shuffle", 2, (200, 90, 239, 238, 53, 87, 137, 29, 157, 178)),
            ),
            head=Block("head", 6, (223, 200, 50, 192, 165, 36, 198, 75, 113, 36)),
            seed=40097,
        ),
        Gates(closed=4, whole=0, linear=9, seed=2_807_469_949),
    ),
]


@pytest.mark.parametrize(("program", "gates"), PADDED)
def test_zeros_are_padded_to_what_a_closed_branch_was_added_to(
    program: Program, gates: Gates
) -> None:
    checking.check_compact(program, gates)


# A shortcut reads constants, and then an activation beside it changes them in place.
CHANGED_AFTERWARDS = Program(
    shape=(3, 6, 5),
    blocks=(
        Block("plain", 6, (67, 238, 123, 4, 106, 1, 100, 165, 188, 20)),
        Block("residual", 2, (28, 136, 18, 212, 128, 131, 8, 124, 200, 178)),
    ),
    head=Block("head", 2, (68, 238, 134, 49, 28, 210, 148, 138, 213, 140)),
    seed=1312,
)


def test_constants_are_noted_before_they_are_changed_in_place() -> None:
    checking.check_compact(CHANGED_AFTERWARDS, Gates(closed=3, whole=0, linear=3, seed=3))


# One column of a matrix, and a convolution with a stride over the rows of one.
OVER_PLACES = [
    (
        Program(
            shape=(2, 6, 6),
            blocks=(
                Block("stream", 4, (61, 218, 25, 178, 101, 159, 196, 51, 182, 188)),
                Block("tokens", 1, (164, 211, 100, 150, 172, 178, 178, 198, 127, 60)),
            ),
            head=Block("head", 1, (164, 163, 156, 190, 200, 128, 51, 21, 193, 197)),
            seed=700,
        ),
        Gates(closed=6, whole=0, linear=10, seed=6_997_267),
    ),
    (
        Program(
            shape=(2, 7, 7),
            blocks=(
                Block("plain", 3, (13, 197, 37, 198, 219, 162, 31, 84, 218, 92)),
                Block("tokens", 4, (152, 191, 235, 1, 105, 63, 116, 110, 80, 56)),
                Block("plain", 5, (13, 197, 37, 198, 219, 162, 31, 84, 218, 92)),
                Block("tokens", 6, (52, 44, 74, 85, 227, 35, 35, 136, 118, 184)),
            ),
            head=Block("head", 3, (93, 0, 120, 181, 200, 89, 184, 128, 220, 107)),
            seed=2_704_763,
        ),
        Gates(closed=5, whole=2, linear=0, seed=87_465),
    ),
    (  # channels are padded with zeros
        Program(
            shape=(1, 8, 8),
            blocks=(
                Block("group_normed", 3, (205, 190, 100, 128, 182, 17, 175, 166, 142, 107)),
                Block("mixed", 5, (20, 229, 0, 131, 154, 58, 108, 40, 154, 140)),
                Block("residual", 6, (44, 2, 196, 221, 205, 105, 80, 66, 239, 126)),
            ),
            head=Block("head", 4, (94, 144, 238, 113, 20, 216, 217, 203, 10, 128)),
            seed=208_016,
        ),
        Gates(closed=10, whole=0, linear=4, seed=144_381),
    ),
]


@pytest.mark.parametrize(("program", "gates"), OVER_PLACES)
def test_what_layers_over_places_give_for_each_channel_is_compacted(
    program: Program, gates: Gates
) -> None:
    checking.check_compact(program, gates)


# Of one channel everywhere: only branches are learnt.
WITHOUT_WIDTHS = Program(
    shape=(3, 5, 5),
    blocks=(
        Block("plain", 1, (12, 187, 216, 174, 154, 76, 120, 59, 178, 174)),
        Block("transformer", 1, (1, 122, 237, 192, 115, 95, 35, 70, 0, 32)),
    ),
    head=Block("head", 2, (12, 187, 216, 174, 154, 76, 120, 59, 178, 174)),
    seed=420,
)


def test_a_network_without_width_gates_shrinks() -> None:
    checking.check_shrink(WITHOUT_WIDTHS, Gates(closed=5, whole=0, linear=1, seed=380_547))


def test_channels_stay_that_a_shuffle_of_pixels_has_put_into_one() -> None:
    """An activation read them there, and surgery refused the network."""
    shuffled = [nn.Conv2d(2, 4, 3), nn.ReLU(), nn.PixelShuffle(2), nn.ReLU(), nn.Flatten()]
    net = nn.Sequential(*shuffled, nn.Linear(64, 6), nn.ReLU(), nn.Linear(6, 2))
    gated = al.add_gates(net, torch.randn(2, 2, 6, 6))
    for gate in al.width_gates(gated).values():
        torch.nn.init.zeros_(gate)
    small = al.compact(gated)
    assert small.get_parameter("0.weight").shape[0] == 4
    assert small.get_parameter("5.weight").shape[0] == 1


# A BatchNorm makes channels of a group constants, for which the layer behind needs a bias.
CONSTANTS_OF_GROUPS = Program(
    shape=(2, 4, 3, 4),
    blocks=(
        Block("resnext", 1, (113, 239, 233, 107, 143, 48, 2, 74, 24, 39)),
        Block("plain", 6, (207, 174, 196, 3, 149, 67, 117, 30, 222, 38)),
    ),
    head=Block("head", 3, (52, 59, 134, 143, 139, 5, 187, 30, 9, 122)),
    seed=311,
)


def test_a_bias_costs_something_that_a_closed_group_makes_necessary() -> None:
    gates = Gates(closed=10, whole=10, linear=10, seed=2_389_328)
    checking.check_device_costs(CONSTANTS_OF_GROUPS, gates)


def test_a_tied_weight_is_applied_to_the_channels_of_another_dimension() -> None:
    """Its rows were looked for under its second name."""
    program = Program(
        shape=(1, 8, 8),
        blocks=(
            Block("concat", 2, (161, 200, 215, 16, 62, 4, 131, 19, 30, 205)),
            Block("tokens", 4, (22, 179, 0, 69, 0, 164, 32, 150, 134, 182)),
            Block("tied", 4, (229, 63, 17, 99, 74, 238, 79, 127, 105, 51)),
            Block("pair", 6, (210, 64, 100, 8, 13, 239, 187, 200, 220, 171)),
        ),
        head=Block("head", 4, (194, 145, 119, 67, 211, 112, 67, 111, 100, 54)),
        seed=118_144_249,
    )
    checking.check_shrink(program, Gates(closed=5, whole=0, linear=9, seed=248))


def test_half_of_the_channels_that_pixels_are_made_of_do_not_go() -> None:
    """Every second row of pixels went, which no pixel shuffle leaves out."""
    program = Program(
        shape=(1, 8, 8),
        blocks=(
            Block("pair", 1, (140, 154, 0, 0, 203, 146, 215, 166, 71, 60)),
            Block("residual", 4, (128, 111, 195, 122, 231, 134, 11, 67, 239, 218)),
            Block("plain", 4, (147, 125, 100, 236, 235, 219, 167, 183, 166, 213)),
            Block("pixels", 5, (88, 43, 202, 129, 231, 39, 160, 209, 239, 134)),
            Block("arithmetic", 2, (140, 154, 0, 0, 203, 146, 215, 166, 71, 60)),
        ),
        head=Block("head", 2, (128, 140, 169, 113, 239, 100, 100, 100, 19, 92)),
        seed=2215,
    )
    checking.check_compact(program, Gates(closed=8, whole=0, linear=7, seed=164_297_948))


def test_a_layer_that_pads_channels_by_a_number_is_narrowed_and_its_numbers_are_not_learnt() -> (
    None
):
    """`nn.ConstantPad1d` was refused once a channel was closed, and its 0.7 had gates."""
    program = Program(
        shape=(2, 6, 6),
        blocks=(
            Block("residual", 4, (21, 104, 196, 171, 159, 113, 151, 138, 176, 136)),
            Block("tokens", 4, (172, 14, 30, 127, 54, 19, 201, 198, 64, 120)),
            Block("scaled", 3, (26, 64, 34, 100, 140, 176, 216, 219, 61, 229)),
            Block("padded", 5, (220, 1, 37, 0, 40, 2, 135, 159, 64, 207)),
            Block("scaled", 3, (159, 227, 71, 224, 15, 211, 183, 156, 225, 115)),
        ),
        head=Block("head", 3, (130, 70, 88, 155, 1, 39, 74, 238, 187, 4)),
        seed=71_949,
    )
    assert set(al.width_gates(checking.gate(program))) == {
        "blocks.0.body.0", "blocks.1.1", "heads.4.1",
    }  # fmt: skip
    checking.check_shrink(program, Gates(closed=7, whole=2, linear=1, seed=226))
