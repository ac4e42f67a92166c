"""Torch on one thread: the tests share a small machine."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
torch.set_num_threads(1)
