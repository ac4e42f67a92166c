"""A model's shape from its config: tensors and dimensions."""

from advisor.architecture.config import ConfigError, of_model, read
from advisor.architecture.shape import Architecture, Block, Experts, Latent, Mixer, Tensor

__all__ = ["Architecture", "Block", "ConfigError", "Experts", "Latent", "Mixer", "Tensor", "of_model", "read"]
