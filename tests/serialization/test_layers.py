"""Every layer that a file may name comes back with the settings it had."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import archlearn as al
from archlearn.serialization import layer_registry
from archlearn.serialization.layer_registry import all_layers

# Arguments that differ from the defaults, by the first words of a layer's name that fit.
ARGUMENTS: dict[str, dict[str, Any]] = {
    "AdaptiveLogSoftmax": {},
    "Adaptive": {"output_size": 3},
    "AlphaDropout": {"p": 0.3},
    "AvgPool": {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True},
    "BatchNorm": {"num_features": 4, "eps": 1e-3, "momentum": None, "affine": False},
    "SyncBatchNorm": {"num_features": 4, "eps": 1e-3, "track_running_stats": False},
    "Bilinear": {"in1_features": 2, "in2_features": 3, "out_features": 4, "bias": False},
    "CELU": {"alpha": 0.7},
    "ChannelShuffle": {"groups": 2},
    "PixelShuffle": {"upscale_factor": 2},
    "PixelUnshuffle": {"downscale_factor": 2},
    "ConstantPad": {"padding": 2, "value": 0.5},
    "ConvTranspose": {
        "in_channels": 4, "out_channels": 6, "kernel_size": 3, "stride": 2, "padding": 1,
        "output_padding": 1, "groups": 2, "bias": False, "dilation": 2,
    },
    "Conv": {
        "in_channels": 4, "out_channels": 6, "kernel_size": 3, "stride": 2, "padding": 1,
        "dilation": 2, "groups": 2, "bias": False, "padding_mode": "circular",
    },
    "CosineSimilarity": {"dim": 2, "eps": 1e-4},
    "PairwiseDistance": {"p": 1.0, "eps": 1e-4, "keepdim": True},
    "Dropout": {"p": 0.3},
    "ELU": {"alpha": 0.7},
    "Embedding": {"num_embeddings": 5, "embedding_dim": 3, "padding_idx": 1, "max_norm": 2.0},
    "FeatureAlphaDropout": {"p": 0.3},
    "Flatten": {"start_dim": 2, "end_dim": 3},
    "Unflatten": {"dim": 1, "unflattened_size": (2, 3)},
    "Fold": {"output_size": (4, 5), "kernel_size": 2, "dilation": 1, "padding": 1, "stride": 2},
    "Unfold": {"kernel_size": 2, "dilation": 2, "padding": 1, "stride": 2},
    "GELU": {"approximate": "tanh"},
    "GLU": {"dim": 1},
    "GRUCell": {"input_size": 3, "hidden_size": 2, "bias": False},
    "LSTMCell": {"input_size": 3, "hidden_size": 2},
    "RNNCell": {"input_size": 3, "hidden_size": 2, "nonlinearity": "relu"},
    "GRU": {"input_size": 3, "hidden_size": 2, "num_layers": 2, "dropout": 0.2, "bias": False},
    "LSTM": {"input_size": 3, "hidden_size": 4, "proj_size": 2, "bidirectional": True},
    "RNN": {"input_size": 3, "hidden_size": 2, "nonlinearity": "relu", "batch_first": True},
    "GroupNorm": {"num_groups": 2, "num_channels": 4, "eps": 1e-3, "affine": False},
    "Hardshrink": {"lambd": 0.3},
    "Softshrink": {"lambd": 0.3},
    "Hardtanh": {"min_val": -0.5, "max_val": 0.7},
    "InstanceNorm": {"num_features": 4, "affine": True, "track_running_stats": True},
    "LPPool": {"norm_type": 3.0, "kernel_size": 2, "stride": 1, "ceil_mode": True},
    "LayerNorm": {"normalized_shape": (3, 4), "eps": 1e-3, "bias": False},
    "RMSNorm": {"normalized_shape": (3, 4), "eps": 1e-3},
    "LeakyReLU": {"negative_slope": 0.3},
    "Linear": {"in_features": 3, "out_features": 2, "bias": False},
    "LocalResponse": {"size": 3, "alpha": 0.1, "beta": 0.5, "k": 2.0},
    "LogSoftmax": {"dim": 1},
    "MaxPool": {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True},
    "MaxUnpool": {"kernel_size": 3, "stride": 2, "padding": 1},
    "MultiheadAttention": {
        "embed_dim": 4, "num_heads": 2, "dropout": 0.1, "bias": False, "add_bias_kv": True,
        "kdim": 3, "vdim": 2, "batch_first": True,
    },
    "PReLU": {"num_parameters": 4},
    "RReLU": {"lower": 0.2, "upper": 0.3},
    "ReLU": {"inplace": True},
    "Softmax2d": {},
    "Softmax": {"dim": 1},
    "Softmin": {"dim": 1},
    "Softplus": {"beta": 0.5, "threshold": 10.0},
    "Softsign": {},
    "Threshold": {"threshold": 0.1, "value": 0.2},
    "UpsamplingBilinear2d": {"scale_factor": 2},
    "UpsamplingNearest2d": {"size": (3, 4)},
    "Upsample": {"scale_factor": 1.5, "mode": "bicubic", "align_corners": True},
}  # fmt: skip
PADS = ("CircularPad", "ReflectionPad", "ReplicationPad", "ZeroPad")


def arguments_of(name: str) -> dict[str, Any]:
    if name.startswith(PADS):
        return {"padding": 2}
    return next((value for key, value in ARGUMENTS.items() if name.startswith(key)), {})


def settings_of(layer: nn.Module) -> dict[str, Any]:
    skipped = ("_", "training", "init")
    kept = {k: v for k, v in vars(layer).items() if not k.startswith(skipped)}
    return {key: value for key, value in kept.items() if not isinstance(value, torch.Tensor)}


@pytest.mark.parametrize("kind", all_layers())
def test_a_layer_comes_back_with_its_settings(kind: str, tmp_path: Path) -> None:
    layer = all_layers()[kind](**arguments_of(kind.rsplit(".", 1)[-1]))
    al.save(nn.Sequential(layer), tmp_path / "net.safetensors")
    (loaded,) = al.load(tmp_path / "net.safetensors")
    assert type(loaded) is type(layer)
    assert repr(loaded) == repr(layer)
    assert settings_of(loaded) == settings_of(layer)
    assert list(loaded.state_dict()) == list(layer.state_dict())
    for name, tensor in layer.state_dict().items():
        torch.testing.assert_close(loaded.state_dict()[name], tensor, rtol=0, atol=0)


def test_the_samples_are_not_the_defaults() -> None:
    assert repr(nn.LPPool2d(**arguments_of("LPPool2d"))) != repr(nn.LPPool2d(3.0, 2))
    assert arguments_of("BatchNorm2d")["affine"] is False


def test_norms_are_read_by_a_torch_whose_norms_take_no_bias(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of 2.6 reads the file of a later one, which writes the argument."""
    al.save(nn.Sequential(nn.BatchNorm2d(4), nn.GroupNorm(2, 4, affine=False)), tmp_path / "usual")
    al.save(nn.Sequential(nn.BatchNorm2d(4, bias=False)), tmp_path / "without")
    named = layer_registry._argument_names
    monkeypatch.setattr(
        layer_registry, "_argument_names", lambda kind: tuple(n for n in named(kind) if n != "bias")
    )
    assert al.load(tmp_path / "usual").state_dict().keys() >= {"0.weight", "0.bias"}
    with pytest.raises(al.FileError, match=r"no argument 'bias' in torch .*a later torch, install"):
        al.load(tmp_path / "without")
