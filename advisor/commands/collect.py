"""``advisor collect``: what to paste beside an error: versions, cards, allocator settings. Nothing heavy is imported."""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
from importlib import metadata
from typing import Any

from advisor.commands import options, output

PACKAGES = (
    "torch", "transformers", "trl", "accelerate", "peft", "bitsandbytes", "deepspeed", "flash-attn", "liger-kernel", "xformers", "unsloth", "axolotl",
    "llamafactory", "torchtune", "torchtitan", "litgpt", "verl", "openrlhf", "ms-swift", "vllm", "sglang", "megatron-core", "transformer-engine", "triton",
)  # fmt: skip
# only names that say something about memory or placement; no other variable is printed
VARIABLES = (
    "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING", "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_LAUNCH_BLOCKING", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "LOCAL_RANK", "RANK", "NCCL_BUFFSIZE",
    "NCCL_CUMEM_ENABLE", "CUDA_MODULE_LOADING", "FSDP_CPU_RAM_EFFICIENT_LOADING", "ACCELERATE_USE_FSDP", "ACCELERATE_MIXED_PRECISION",
    "TORCH_NCCL_AVOID_RECORD_STREAMS",
)  # fmt: skip
HEADER = "advisor collect 1"
SMI_FIELDS = "index,name,memory.total,memory.used,memory.free,driver_version,mig.mode.current"
SMI_SECONDS = 10


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    options.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Print what was found."""
    versions = {name: found for name in PACKAGES if (found := _version(name)) is not None}
    settings = {name: os.environ[name] for name in VARIABLES if name in os.environ}
    smi = _smi(f"--query-gpu={SMI_FIELDS}", "--format=csv")
    processes = _smi("--query-compute-apps=gpu_uuid,pid,used_memory", "--format=csv")
    if args.json:
        from advisor.render import json

        everything: dict[str, Any] = {
            "version": 1, "python": platform.python_version(), "platform": f"{platform.system()} {platform.machine()}", "versions": versions,
            "environment": settings, "nvidia_smi": smi, "processes": processes, "host_memory_bytes": _host_memory(),
        }  # fmt: skip
        output.write(json.text(everything) + "\n")
        return 0
    host = _host_memory()
    lines = [HEADER, f"python=={platform.python_version()}", f"platform: {platform.system()} {platform.machine()}"]
    lines += [f"host memory: {host / 1024**3:.1f} GiB"] if host else []
    lines += [f"{name}=={version}" for name, version in versions.items()]
    lines += [f"{name}={value}" for name, value in settings.items()]
    lines += ["", f"nvidia-smi --query-gpu={SMI_FIELDS} --format=csv", smi] if smi else ["nvidia-smi: not found, or it gave no answer"]
    lines += ["", "nvidia-smi --query-compute-apps=gpu_uuid,pid,used_memory --format=csv", processes] if processes else []
    output.write("\n".join(lines).rstrip() + "\n")
    return 0


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _smi(*options: str) -> str | None:
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    try:
        done = subprocess.run([program, *options], capture_output=True, text=True, timeout=SMI_SECONDS, check=False)  # noqa: S603  fixed arguments
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


def _host_memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None
