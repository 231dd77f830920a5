"""Convolutional encoders and the networks on them."""

from rl_training.models.cnn.drq import CNNDrQModel
from rl_training.models.cnn.nature import NatureCNN

__all__ = ["CNNDrQModel", "NatureCNN"]
