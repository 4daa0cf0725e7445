"""Built-in networks by name, pretrained weights, and users' own networks."""

from archlearn.models.caffenet import AlexNet, CaffeNet
from archlearn.models.cifar_networks import (
    VGG,
    DenseNet,
    MobileNetStage,
    MobileNetV2,
    PreActivationResNet,
    ResNet,
)
from archlearn.models.lenet import MLP, ConvNet, DeepLeNet, LeNet
from archlearn.models.model_registry import MODELS, build_network
from archlearn.models.transformers import GPT, Mixer, ViT

__all__ = [
    "GPT",
    "MLP",
    "MODELS",
    "VGG",
    "AlexNet",
    "CaffeNet",
    "ConvNet",
    "DeepLeNet",
    "DenseNet",
    "LeNet",
    "Mixer",
    "MobileNetStage",
    "MobileNetV2",
    "PreActivationResNet",
    "ResNet",
    "ViT",
    "build_network",
]
