"""Configs of any framework: recognised by what is in them, read through the two-way tables, never evaluated."""

from advisor.reading.configs.config_reading import ConfigReading
from advisor.reading.configs.read import read_config

__all__ = ["ConfigReading", "read_config"]
