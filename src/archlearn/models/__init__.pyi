"""The public names, and where each is; `archlearn.lazy_names` reads this list."""

from archlearn.models.caffenet import AlexNet as AlexNet
from archlearn.models.caffenet import CaffeNet as CaffeNet
from archlearn.models.cifar_networks import VGG as VGG
from archlearn.models.cifar_networks import DenseNet as DenseNet
from archlearn.models.cifar_networks import MobileNetV2 as MobileNetV2
from archlearn.models.cifar_networks import PreActivationResNet as PreActivationResNet
from archlearn.models.cifar_networks import ResNet as ResNet
from archlearn.models.lenet import MLP as MLP
from archlearn.models.lenet import ConvNet as ConvNet
from archlearn.models.lenet import DeepLeNet as DeepLeNet
from archlearn.models.lenet import LeNet as LeNet
from archlearn.models.model_registry import MODELS as MODELS
from archlearn.models.model_registry import build_network as build_network
from archlearn.models.transformers import GPT as GPT
from archlearn.models.transformers import Mixer as Mixer
from archlearn.models.transformers import ViT as ViT
