"""Convolutional encoders and the networks that use them."""

from rl_training.models.cnn.drq import CNNDrQModel
from rl_training.models.cnn.drqv2 import CNNDrQv2Model
from rl_training.models.cnn.nature import NatureCNN

__all__ = ["CNNDrQModel", "CNNDrQv2Model", "NatureCNN"]
