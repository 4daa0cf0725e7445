"""The public names, and where each is; `archlearn.lazy_names` reads this list."""

from archlearn_cli.models.alexnet import AlexNet as AlexNet
from archlearn_cli.models.cifar_networks import VGG as VGG
from archlearn_cli.models.cifar_networks import DenseNet as DenseNet
from archlearn_cli.models.cifar_networks import MobileNetV2 as MobileNetV2
from archlearn_cli.models.cifar_networks import PreActivationResNet as PreActivationResNet
from archlearn_cli.models.cifar_networks import ResNet as ResNet
from archlearn_cli.models.lenet import MLP as MLP
from archlearn_cli.models.lenet import ConvNet as ConvNet
from archlearn_cli.models.lenet import DeepLeNet as DeepLeNet
from archlearn_cli.models.lenet import LeNet as LeNet
from archlearn_cli.models.model_registry import MODELS as MODELS
from archlearn_cli.models.model_registry import build_network as build_network
from archlearn_cli.models.transformers import GPT as GPT
from archlearn_cli.models.transformers import Mixer as Mixer
from archlearn_cli.models.transformers import ViT as ViT
