"""Readers of Hugging Face configs, one file a group of families; :data:`READERS` maps ``model_type`` to its module.

The modules are imported when a config of theirs is read: a look at one model loads one reader.
"""

from __future__ import annotations

_MODULES: dict[str, str] = {
    "llamalike": "llama mistral ministral ministral3 qwen2 qwen2_vl_text qwen2_5_vl_text mimo qwen3 qwen3_vl_text gemma gemma2 gemma3_text vaultgemma phi3 "
    "granite smollm3 olmo olmo2 olmo3 exaone4 cohere cohere2 nemotron arcee starcoder2 stablelm glm glm4 apertus ernie4_5 seed_oss helium hunyuan_v1_dense phi "
    "internlm internlm2 baichuan chatglm qwen",
    "gpt2": "gpt2 gpt_bigcode",
    "fused": "gpt_neox gptj codegen gpt_neo falcon bloom opt mpt",
    "moe": "mixtral qwen2_moe qwen3_moe qwen3_vl_moe_text olmoe granitemoe phimoe gpt_oss glm4_moe llama4_text minimax_m2 ernie4_5_moe dbrx dots1 "
    "exaone_moe hy_v3 sarvam_moe mellum flex_olmo",
    "mla": "deepseek_v2 deepseek_v3 kimi_k2 glm4_moe_lite",
    "hybrid": "mamba falcon_mamba mamba2 jamba bamba granitemoehybrid granitemoeshared falcon_h1 lfm2 lfm2_moe qwen3_next qwen3_5_text qwen3_5_moe_text",
    "nemotron_h": "nemotron_h",
    "gemma3n": "gemma3n_text",
    "gemma4": "gemma4 gemma4_text",
    "mllama": "mllama mllama_text_model",
    "encoders": "bert roberta xlm-roberta deberta-v2 electra distilbert modernbert camembert",
    "seq2seq": "t5 mt5 umt5 longt5 bart mbart whisper m2m_100 pegasus marian plbart mvp blenderbot blenderbot-small",
    "vision": "qwen2_vl qwen2_5_vl qwen3_vl qwen3_vl_moe qwen3_5 qwen3_5_moe gemma3 paligemma llava llava_next mistral3 "
    "idefics3 smolvlm internvl llama4 vit dinov2 clip",
}
READERS: dict[str, str] = {name: module for module, names in _MODULES.items() for name in names.split()}
