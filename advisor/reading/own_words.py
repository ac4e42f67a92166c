"""Shortages that a library reports in words of its own, with no allocator's text in them.

Sources: accelerate ``utils/memory.py`` find_executable_batch_size ("No executable batch size found, reached zero."); unsloth_zoo
``fused_losses/cross_entropy_loss.py`` ("No or negligible GPU memory available for fused cross entropy.") and ``vllm_utils.py`` ("Your GPU ran out
of memory loading vLLM"); transformers ``trainer.py`` _evaluate ("Evaluation hit an out-of-memory error.") and
``generation/continuous_batching/cache.py`` ("Memory footprint n is more than available memory m"); composer ``trainer/trainer.py``
_adjust_device_train_microbatch_size and its evaluation's ("The train loop failed with an internal microbatch of size 1."); DeepSpeed
``runtime/hybrid_engine.py`` retake_inference_cache ("Unable to retake inference workspace."); datasets ``utils/py_utils.py``
iflatmap_unordered ("One of the subprocesses has abruptly died during map operation"); CPython ``concurrent/futures/process.py`` ("A process in the
process pool was terminated abruptly"); Apache Arrow ``memory_pool.cc`` ("malloc of size n failed", as pyarrow.lib.ArrowMemoryError); Rust's
standard library, in which tokenizers and polars are written ("memory allocation of n bytes failed"); Ray ``exceptions.py`` (ObjectStoreFullError:
the store lies in /dev/shm; ActorDiedError, whose worker "unexpectedly exits": the kernel's killer is the first reason that it names).
"""

from __future__ import annotations

import re

from advisor.reading.found import Found
from advisor.reading.pattern import pattern as lazily
from advisor.units import Size

HEAD = lazily(
    r"Memory footprint \d{1,20} is more than available memory|No or negligible GPU memory|GPU ran out of memory loading|No executable batch size found|"
    r"Evaluation hit an out-of-memory error|subprocesses has abruptly died|process pool was terminated abruptly|"
    r"failed with an internal microbatch of size 1\b|Unable to retake inference workspace|"
    r"(?:ObjectStoreFullError|ArrowMemoryError): (?!pass\b|raise\b|return\b|continue\b)\S|(?:actor|worker) died unexpectedly before finishing|"
    r"\b(?:malloc|realloc) of size \d{1,20} failed|\bmemory allocation of \d{1,20} bytes failed",
    re.IGNORECASE,
)
_ONE = lazily(r"No executable batch size found|train loop failed with an internal microbatch of size 1\b", re.IGNORECASE)
_CACHE = lazily(r"Memory footprint \d{1,20} is more than available memory", re.IGNORECASE)
_NOTHING_LEFT = lazily(r"No or negligible GPU memory|GPU ran out of memory loading", re.IGNORECASE)
_WORKSPACE = lazily(r"Unable to retake inference workspace", re.IGNORECASE)
_EVALUATION = lazily(r"Evaluation hit an out-of-memory error|eval loop failed with an internal microbatch of size 1\b", re.IGNORECASE)
_STORE = lazily(r"ObjectStoreFullError", re.IGNORECASE)
_ACTOR = lazily(r"(?:actor|worker) died unexpectedly before finishing", re.IGNORECASE)
_WORKER = lazily(r"subprocesses has abruptly died|process pool was terminated abruptly", re.IGNORECASE)
_HOST = lazily(r"(?:malloc|realloc) of size (\d{1,20}) failed|memory allocation of (\d{1,20}) bytes failed|ArrowMemoryError", re.IGNORECASE)
# the words as what somebody read or asks about: "I read that 'No executable batch size found' means ..."
_ASKED_BEFORE = lazily(r"\b(?:read|heard|know|docs?|documentation|says|what does|what is|whether|when|if)\b[^.!?\n]{0,60}$", re.IGNORECASE)
_MEANS = lazily(r"[^.!?\n]{0,40}?[\"'`\u201d]?,? (?:means?|meant|would mean|is (?:printed|raised|shown) (?:when|if))\b", re.IGNORECASE)


def read_failure(text: str) -> Found | None:
    """The card's or the host's shortage; ``details``: what the words say was tried or lost. None where they are only spoken about."""
    said = HEAD.search(text)
    if said is not None and (_ASKED_BEFORE.search(text[max(0, said.start() - 80) : said.start()]) or _MEANS.match(text[said.end() : said.end() + 80])):
        return None
    if _ONE.search(text) is not None:
        return Found("gpu-memory", details=(("what", "one sample"),))
    if _CACHE.search(text) is not None:
        return Found("gpu-memory", details=(("what", "paged cache"),), phase="rollout")
    if _NOTHING_LEFT.search(text) is not None:
        return Found("gpu-memory", details=(("what", "nothing left"),))
    if _EVALUATION.search(text) is not None:
        return Found("gpu-memory", details=(("what", "evaluation"),), phase="eval")
    if _WORKSPACE.search(text) is not None:
        return Found("gpu-memory", details=(("what", "workspace"),), phase="rollout")
    if _STORE.search(text) is not None:
        return Found("host-memory", "cpu", details=(("what", "object store"),))
    if _ACTOR.search(text) is not None:
        return Found("host-memory", "cpu", details=(("what", "worker gone"),), consequence=True)
    if _WORKER.search(text) is not None:
        return Found("host-memory", "cpu", details=(("what", "worker gone"),))
    if (host := _HOST.search(text)) is not None:
        asked = host[1] or host[2]
        return Found("host-memory", "cpu", sizes={"requested": Size(int(asked), 0)} if asked else {}, details=(("what", "host allocation"),))
    return None
