"""Secrets, user names, hosts, addresses and home paths, masked as text comes in.

Package-relative paths (``site-packages/torch/optim/adamw.py``) are kept: they say which library failed. Line breaks are kept, so that
line numbers stay true. Each pattern is tried only where a cheap test says that it could match.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

from advisor.reading.pattern import pattern as lazily

_PUBLIC_HOSTS = lazily(
    r"(?:^|\.)(?:pytorch\.org|huggingface\.co|hf\.co|github\.com|github\.io|githubusercontent\.com|readthedocs\.io|python\.org|pypi\.org|nvidia\.com|ray\.io|"
    r"google\.com|deepspeed\.ai|vllm\.ai|wandb\.ai|arxiv\.org|pythonhosted\.org|tensorflow\.org|modelscope\.cn|aka\.ms|localhost)$",
    re.IGNORECASE,
)

_SECRET_WORD = r"(?:api[_-]?key|apikey|secret(?:[_-]?(?:access[_-]?)?key)?|(?:access|auth|hub|hf|refresh|bearer|bot|push_to_hub|huggingface(?:_hub)?)[_-]?token|passw(?:or)?d|passwd|private[_-]?key|credentials?|webhook(?:_url)?)"  # noqa: E501, S105  the words, not a secret

_TOKENS = lazily(
    r"\bhf_[A-Za-z0-9]{16,}\b|\bapi_org_[A-Za-z0-9]{16,}\b"  # Hugging Face
    r"|\bsk-(?:proj-|ant-|or-)?[A-Za-z0-9_-]{16,}"  # OpenAI and alike
    r"|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"  # AWS key ids
    r"|\bgh[pousr]_[A-Za-z0-9]{20,}\b|\bgithub_pat_[A-Za-z0-9_]{20,}\b|\bglpat-[A-Za-z0-9_-]{16,}"
    r"|\bxox[abpors]-[A-Za-z0-9-]{10,}|\bAIza[A-Za-z0-9_-]{30,}|\bya29\.[A-Za-z0-9_-]{20,}"
    r"|\bnvapi-[A-Za-z0-9_-]{20,}|\bdapi[a-f0-9]{32}\b|\bnpm_[A-Za-z0-9]{30,}\b|\bpypi-[A-Za-z0-9_-]{30,}"
    r"|\beyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{5,}"  # a JWT
)
_PEM = lazily(r"(-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----)([\s\S]{0,20000}?)(-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)")
_ASSIGNED = lazily(
    rf"(?i)([\"']?(?:[A-Za-z0-9]{{1,30}}[_.-]){{0,4}}{_SECRET_WORD}[\"']?[ \t]*[=:][ \t]*)([\"']?)(?!None\b|null\b|true\b|false\b|<)([^\s\"',;)}}]{{6,}})"
)
_OPTION = lazily(rf"(?i)(--(?:[A-Za-z0-9]{{1,30}}[_.-]){{0,4}}{_SECRET_WORD}[ \t]+)([^\s\"'-][^\s\"']{{5,}})")
_BEARER = lazily(r"(?i)\b(bearer|basic)[ \t]+[A-Za-z0-9._~+/=-]{12,}")
_URL = lazily(r"\b([a-z][a-z0-9+.-]{1,20})://(?:([^\s/@:\"']{1,200})(?::([^\s/@\"']{0,200}))?@)?([A-Za-z0-9.-]{1,253})(:\d{1,5})?")
_EMAIL = lazily(r"\b[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9.-]{1,190}\.[A-Za-z]{2,18}\b")
_SHELL_PROMPT = lazily(r"(?m)^(\(?[\w.-]{0,40}\)?\s?)[a-z_][\w.-]{0,31}@[\w.-]{1,100}([:\s~/])")
_PRIVATE_HOST = lazily(r"(?i)\b(?:[a-z0-9-]{1,63}\.){1,6}(?:internal|local|lan|corp|intra|cluster|svc|localdomain|hpc)\b(?:\.[a-z0-9-]{1,63}){0,4}")
_HOST_KEY = lazily(
    r"(?i)\b((?:[a-z]+[_.-])?(?:host(?:_?name)?|node_?name|nodelist|master_addr|master|server|NodeName|machine|"
    r"rdzv_endpoint)s?[ \t]*[=:][ \t]*[\"']?)(?!localhost|127\.|<|(?:none|null|true|false|auto|fp32|bf16|fp16|float32|bfloat16|"
    r"cuda|gpu|cpu|oom|out|torch)\b)([A-Za-z][\w.\[\],-]{1,250})"
)
_NCCL_HOST = lazily(r"^[A-Za-z0-9][\w.-]{0,100}(?=:\d{1,8}:\d{1,8}(?::\d{1,8})? \[\d{1,4}\])", re.MULTILINE)
_NODE_NAME = lazily(  # cloud names made of the address, and pods of a Kubernetes deployment; model names look alike, so nothing wider
    r"\bip-\d{1,3}(?:-\d{1,3}){3}\b|\b[a-z][a-z0-9-]{1,50}-(?=[a-f]*\d)[a-f0-9]{8,10}-(?=[a-z]*\d)[a-z0-9]{5}(?![\w-])"
)
_IPV4 = lazily(r"(?<![\w.=v-])(?!0\.0\.0\.0|127\.)(?<!version )(?:25[0-5]|2[0-4]\d|1?\d?\d)(?:\.(?:25[0-5]|2[0-4]\d|1?\d?\d)){3}(?![\w.]*\d|\.\d)")
_IPV6 = lazily(r"(?<![\w:])(?:[0-9a-fA-F]{1,4}:){4,7}(?:[0-9a-fA-F]{1,4}|:)(?![\w:])|(?<![\w:])fe80::[0-9a-fA-F:]{2,40}")
_HOME = lazily(
    r"(?i)(?<![\w.])(?:[a-z]:)?(?:[\\/]{1,2}[\w.-]{1,40}){0,3}?[\\/]{1,2}(?:home|users|usr/home|home\d{1,3})[\\/]{1,2}(?!shared\b|"
    r"runner\b)([\w.@+-]{1,64})(?=[\\/\s\"':,;)\]]|$)"
)
_ROOT_HOME = lazily(r"(?<![\w./~-])/root(?=/)")
_SCRATCH = lazily(
    r"(?i)(?<![\w.])(/(?:scratch|gpfs|lustre|fsx|nfs|mnt|data|work|beegfs|nas|ceph)(?:/[\w.-]{1,40}){0,2}?/(?:user|users|home|homes|people|u)/)[\w.@+-]{1,64}"
)
_USER_KEY = lazily(
    r"(?i)\b((?:user_?name|logname|user(?=[ \t]*=)|wandb_entity|entity|hub_user(?:name)?)[ \t]*[=:][ \t]*[\"']?)(?!None\b|null\b|true\b|false\b|"
    r"<)([A-Za-z][\w.-]{1,63})(?=[\"'\s,;)}]|$)"
)


def _url(match: re.Match[str]) -> str:
    scheme, user, _, host, port = match.groups()
    if scheme in ("file", "hf", "package", "pkg", "oss") and user is None:
        return match[0]  # a path or a hub id follows, no host
    login = "<login>@" if user is not None else ""
    shown = host if _PUBLIC_HOSTS.search(host) else "<host>"
    return f"{scheme}://{login}{shown}{port or ''}"


_Sub = str | Callable[[re.Match[str]], str]
# (one of these must be in the lower-cased text, pattern, what stands there afterwards)
_STEPS: tuple[tuple[tuple[str, ...], re.Pattern[str], _Sub], ...] = (
    (("private key-----",), _PEM, r"\1<secret>\3"),
    (("hf_", "api_org_", "sk-", "akia", "asia", "gh", "glpat", "xox", "aiza", "ya29", "nvapi", "dapi", "npm_", "pypi-", "eyj"), _TOKENS, "<secret>"),
    (("key", "token", "secret", "passw", "credential", "webhook"), _ASSIGNED, r"\1\2<secret>"),
    (("--",), _OPTION, r"\1<secret>"),
    (("bearer", "basic"), _BEARER, r"\1 <secret>"),
    (("://",), _URL, _url),
    (("@",), _EMAIL, "<email>"),
    (("@",), _SHELL_PROMPT, r"\1<user>@<host>\2"),
    (("nccl", "] "), _NCCL_HOST, "<host>"),
    ((".internal", ".local", ".lan", ".corp", ".intra", ".cluster", ".svc", ".hpc"), _PRIVATE_HOST, "<host>"),
    (("host", "node", "master", "server", "machine", "rdzv"), _HOST_KEY, r"\1<host>"),
    (("-",), _NODE_NAME, "<host>"),
    ((".",), _IPV4, "<ip>"),
    ((":",), _IPV6, "<ip>"),
    (("home", "users"), _HOME, "~"),
    (("/root/",), _ROOT_HOME, "~"),
    (("/user", "/home", "/people", "/u/"), _SCRATCH, r"\1<user>"),
    (("user", "logname", "entity"), _USER_KEY, r"\1<user>"),
)  # fmt: skip


def mask(text: str) -> str:
    """The text with what identifies a person or opens a door replaced by ``<secret>``, ``<email>``, ``<host>``, ``<ip>``, ``<user>``, ``~``."""
    lowered = text.lower()
    for words, pattern, put in _STEPS:
        if any(word in lowered for word in words):
            text = pattern.sub(put, text)
    return text


@cache
def mask_name(name: str) -> str:
    """A file's name for ``where``: its last component, masked (the folders above it may name a person)."""
    return mask(name.replace("\\", "/").rstrip("/").rpartition("/")[2] or name)[:120]
