"""Python tracebacks: plain, notebook and boxed (rich) ones, of several interleaved ranks, with package-relative file names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from msgspec import Struct

from advisor.evidence import Frame
from advisor.reading.lines import LogLine
from advisor.reading.masking import mask_name
from advisor.reading.pattern import pattern as lazily

MAX_FRAMES = 400

_START = lazily(r"Traceback \(most recent call last\)|─ Traceback \(most recent|^-{20,}$|Traceback \(most recent call")
_PLAIN = lazily(
    r'^(?:[^\w"\']{0,12}|.{1,160}\s{2})File "([^"]{1,600})",(?: line (\d{1,7})(?:, in (.{1,300}))?| in ([\w.<>]{1,200}))$'
)  # people cut the line's number out
_NOTEBOOK = lazily(r"^\s*(?:File )?((?:[A-Za-z]:)?[\w./\\~<>@+-]{1,400}?\.py|<[^>]{1,80}>):(\d{1,7}),? in ([\w.<>]{1,200})")
_NOTEBOOK_OLD = lazily(r"^\s*((?:[A-Za-z]:)?[\w./\\~@+-]{1,400}?\.py|<ipython-input[^>]{1,80}>) in ([\w.<>]{1,200})\(")
_CELL = lazily(r"^\s*(?:Cell In|Input In) ?\[(\d{1,6})\], (?:line (\d{1,7})|in )")
_BOXED = lazily(r"^\s*[│|]\s*((?:[A-Za-z]:)?[\w./\\~@+ -]{1,400}?\.py|<[^>]{1,80}>):(\d{1,7}) in ([\w.<>]{1,200})\s*[│|]?\s*$")
_ARROW = lazily(r"^\s*-{2,}> ?(\d{1,7})\s?(.*)$")
_BOXED_CODE = lazily(r"^\s*[│|]\s*❱\s*(\d{1,7})\s*│(.*?)[│|]?\s*$")
_CARETS = lazily(r"^\s*[\^~]{1,400}\s*$|^\s*\.\.\.<\d+ lines?>\.\.\.$")
_EXCEPTION = lazily(
    r"^(?:E\s{1,8})?((?:[A-Za-z_][\w]*\.){0,8}(?:[A-Za-z_]\w*(?:Error|Exception|Interrupt|Exit|Failure|Warning|Timeout|Died)|"
    r"\w*OutOfResources|Exception(?=: )))(?::\s?(.*))?$"
)
_RAISED_BEHIND = lazily(  # behind what a logger puts before a message; only below frames
    r"^\S.{0,160}?[\]|>:)-] {1,4}((?:[A-Za-z_]\w*\.){0,8}[A-Za-z_]\w*(?:Error|Exception)): (\S.*)$"
)
_HEADED = lazily(r"^((?:\w+\.){0,6}\w*(?:Error|Exception))\s{2,}Traceback \(most recent")  # IPython names the class above its frames
_NEUTRAL = lazily(r"^\s*(?:The above exception was the direct cause|During handling of the above exception)")

_PACKAGES = frozenset((  # libraries whose files may stand in a clone instead of site-packages
    "torch", "torchvision", "torchaudio", "transformers", "accelerate", "peft", "trl", "deepspeed", "megatron", "vllm", "sglang", "verl", "openrlhf",
    "axolotl", "llamafactory", "swift", "torchtune", "torchtitan", "litgpt", "lit_gpt", "lightning", "pytorch_lightning", "lightning_fabric",
    "bitsandbytes", "unsloth", "unsloth_zoo", "xformers", "flash_attn", "flash_attn_interface", "nemo", "nemo_rl", "apex", "transformer_engine",
    "jax", "jaxlib", "flax", "optax", "tensorflow", "keras", "ray", "datasets", "diffusers", "timm", "fairseq", "fairscale", "colossalai", "slime",
    "skyrl_train", "skyrl", "areal", "roll", "open_instruct", "composer", "llmfoundry", "fastchat", "liger_kernel", "kernels", "galore_torch",
    "torchao", "triton", "mmcv", "mmengine", "detectron2", "ultralytics", "sentence_transformers", "setfit", "esm", "specforge", "evaluate",
    "optimum", "auto_gptq", "gptqmodel", "awq", "hqq", "lmflow", "xtuner", "mcore", "torchdata", "huggingface_hub", "safetensors", "numpy", "ignite",
    "einops", "alignment", "lomo_optim", "apollo_torch", "tunix", "EasyLM", "llava", "bitnet", "compressed_tensors", "wandb", "torchrec", "fla",
    "mamba_ssm", "cut_cross_entropy", "chatlearn", "rllm", "prime_rl", "nanotron", "gpt_neox", "mii", "torch_npu", "torch_xla", "habana_frameworks",
))  # fmt: skip


class Trace(Struct, frozen=True):
    """A traceback of one stream: its frames outermost first, and the exception line with the lines behind it."""

    frames: tuple[Frame, ...]
    exception: str | None  # "torch.OutOfMemoryError"
    at: int  # index of the exception's line among the stream's lines
    start: int  # index of its first line


@lru_cache(maxsize=4096)
def package_path(path: str) -> str:
    """``transformers/trainer.py`` for an installed package or a clone of one; otherwise the file's own name, masked."""
    parts = [part for part in re.split(r"[\\/]+", path) if part]
    for marker in ("site-packages", "dist-packages"):
        if marker in parts[:-1]:
            return "/".join(parts[len(parts) - parts[::-1].index(marker) :])[:240]
    for index, part in enumerate(parts[:-1]):
        if re.fullmatch(r"python3?(?:\.\d+)?", part) and index and parts[index - 1] in ("lib", "lib64", "Lib"):
            return "/".join(parts[index + 1 :])[:240]
    known = next((part for part in parts[:-1] if part in _PACKAGES), None)
    if known is not None:
        last = max(i for i, part in enumerate(parts[:-1]) if part == known)
        return "/".join(parts[last:])[:240]
    return mask_name(parts[-1] if parts else path)


def frame_of(line: LogLine, where: str) -> Frame | None:
    """The frame that a line names, without its code."""
    text = line.text
    if (".py" not in text and "line" not in text and "<" not in text) or len(text) > 1200:
        return None
    if (m := _PLAIN.match(text)) is not None:
        return Frame(where, package_path(m[1]), int(m[2] or 0), (m[3] or m[4] or "").strip(), rank=line.rank)
    if (m := _BOXED.match(text)) is not None or (m := _NOTEBOOK.match(text)) is not None:
        return Frame(where, package_path(m[1]), int(m[2]), m[3].strip(), rank=line.rank)
    if (m := _NOTEBOOK_OLD.match(text)) is not None:
        return Frame(where, package_path(m[1]), 0, m[2], rank=line.rank)
    if (m := _CELL.match(text)) is not None:
        return Frame(where, f"notebook cell {m[1]}", int(m[2] or 0), "<module>", rank=line.rank)
    return None


def exception_of(text: str) -> tuple[str, str] | None:
    """``(class, message)`` of an exception's line."""
    m = _EXCEPTION.match(text.strip("│ "))
    return None if m is None else (m[1], m[2] or "")


def raised_in(text: str) -> tuple[str, str] | None:
    """``(class, message)`` of the line that closes a traceback, with a logger's prefix before it or without."""
    if text[:1].isspace():
        return None
    if (found := exception_of(text)) is not None or ("Error: " not in text and "Exception: " not in text):
        return found
    m = _RAISED_BEHIND.match(text)
    return None if m is None else (m[1], m[2])


def traces(lines: Sequence[LogLine], name: str) -> list[Trace]:
    """The tracebacks of one stream, in order. One that breaks off has ``exception`` None."""
    out: list[Trace] = []
    frames: list[Frame] = []
    start = 0
    starts = 0
    headed: str | None = None
    for index, line in enumerate(lines):
        text = line.text
        if ("Traceback" in text or text.startswith("-----")) and _START.search(text) is not None:
            if frames and starts <= 1 and frames[0].where != f"{name}:{line.number}" and not _fresh(frames, lines, index):
                out.append(Trace(_once(frames), None, index - 1, start))
                frames = []
            start = index if not frames else start
            starts += 1
            headed = m[1] if (m := _HEADED.match(text)) is not None else headed
            continue
        frame = frame_of(line, f"{name}:{line.number}")
        if frame is not None:
            if not frames:
                start = min(start, index) if starts else index
            if len(frames) < MAX_FRAMES:
                frames.append(_with_code(frame, lines, index))
            continue
        if not frames:
            continue
        if (found := raised_in(text)) is not None:
            out.append(Trace(_once(frames), found[0], index, start))
            frames, starts, headed = [], 0, None
        elif _NEUTRAL.match(text):
            out.append(Trace(_once(frames), None, index - 1, start))
            frames, starts = [], 0
    if frames:
        out.append(Trace(_once(frames), headed, len(lines) - 1, start))
    return out


def _fresh(frames: list[Frame], lines: Sequence[LogLine], index: int) -> bool:
    """Whether a second "Traceback" line belongs to an interleaved second writer: no exception has closed the first yet, and it is close by."""
    return index > 0 and len(frames) <= 2 and frame_of(lines[index - 1], "") is None


def _with_code(frame: Frame, lines: Sequence[LogLine], index: int) -> Frame:
    flush = lines[index].text.startswith('File "')  # a forum took the indentation of frames, and so that of their code
    first = True
    for offset in range(1, 14):
        if index + offset >= len(lines):
            break
        text = lines[index + offset].text
        if not text.strip():
            continue
        if (m := _ARROW.match(text) or _BOXED_CODE.match(text)) is not None:
            return Frame(frame.where, frame.file, frame.line or int(m[1]), frame.function, m[2].strip()[:240], frame.rank)
        if _CARETS.match(text):
            continue
        if frame_of(lines[index + offset], "") is not None or exception_of(text) is not None:
            break
        if first and (flush or text.startswith((" ", "\t"))) and not text.lstrip().startswith(("│", "|")) and not re.match(r"\s+\d+ ", text):
            return Frame(frame.where, frame.file, frame.line, frame.function, text.strip()[:240], frame.rank)
        first = False
        if not text.startswith((" ", "\t", "│", "|", "-")):
            break
    return frame


def _once(frames: list[Frame]) -> tuple[Frame, ...]:
    """Frames without immediate repeats: two ranks that print the same traceback at once interleave frame by frame."""
    out: list[Frame] = []
    for frame in frames:
        if not out or (out[-1].file, out[-1].line, out[-1].function) != (frame.file, frame.line, frame.function):
            out.append(frame)
    return tuple(out)
