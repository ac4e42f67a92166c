"""The phase of a failure from its traceback: which frame says so.

What encloses the rest decides first (an evaluation, a save, a resume, a load, a hand-over); within a training step the innermost
telling frame decides (step, backward, loss, forward).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from advisor.evidence import Frame
from advisor.reading.pattern import pattern as lazily

# Enclosing phases, looked for from the outermost frame inwards; matched on "file:function: code".
_ENCLOSING: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (phase, lazily(pattern, re.IGNORECASE))
    for phase, pattern in (
        (
            "merge",
            r"mlx_lm/fuse\.py|lora\w*\.py:fuse\b|merge_and_unload|merge_adapter|add_weighted_adapter|unload_and_optionally_merge|save_pretrained_merged|export_model\b|merge_lora",
        ),
        (
            "save",
            r"_save_checkpoint|save_checkpoint|save_model\b|save_pretrained|save_16bit_model|save_fp16_model|_zero3_consolidated|consolidated_16bit|"
            r"get_state_dict\b|save_state\b|_(?:(?:full|local|sharded|common|common_unshard)_)?(?:pre|post)_state_dict_hook|:\w*save_(?:ckpt|full_state|state_dict)\w*|"
            r":(?!save_for_backward|save_on_cpu)\w*save_\w*(?:model|ckpt|checkpoint|weights|pretrained)\w*|fully_sharded_data_parallel\.py:state_dict|"
            r"save_fsdp_(?:model|optimizer)|get_model_state_dict|full_optim_state_dict|:optim_state_dict\b|_optim_utils\.py:_(?:allgather|gather_all)\w*state|checkpoint[\w/.]*:save|dcp\.save|:save_\w*checkpoint|async_save",
        ),
        (
            "resume",
            r"(?:torch|paddle)\.load\([^)]*(?:resume|ckpt|checkpoint|pdopt)|load_checkpoint(?!_and_dispatch|_in_model)|_load_from_checkpoint|_load_optimizer_and_scheduler|load_accelerator_state|accelerator\.load_state\(|"
            # verl's and SkyRL's functions of the same names bring back what was set aside for the rollout
            r"(?:accelerate|transformers)/[^\n]*load_fsdp_(?:model|optimizer)|resume_from_checkpoint\(|:_?resume_from_checkpoint: |"
            r":_load_best_model\b|load_state_dict\(checkpoint|optimizer\.load_state_dict|set_optimizer_state_dict|:load_state\b|dcp\.load|(?<!re)load_opt(?:im(?:izer)?)?_states?\b|"
            r":restore_\w+|restore_checkpoint|resume_checkpoint|"
            r"set_(?:model_)?state_dict\(|:_init_optim_state\b|checkpoint/state_dict\.py:(?:set|_load)_\w*state_dict|"
            # a trainer's own resume of a named state; an engine's or a memory saver's takes nothing, or tags
            r"(?<!rollout)(?<!engine)(?<!saver)(?<!adapter)(?<!llm)\.resume\((?!\s*(?:\)|tags|\[))|(?:trainer|runner)\.py:(?:load_or_)?resume: |"
            r"\b(?:checkpoint\w*|ckpt\w*|manager|saver)\.restore\(|orbax/\S*:restore\b|recover_if_possible|:torch_recovery\b",
        ),
        (
            "sync",
            r"update_weights|prepare_weights_for_ipc|weights_for_ipc|stream_weights|"
            r"wake_up|:resume: |\.resume\(|create_and_map|sync_weights?\b|(?<!all_)gather_weight|move_(?:\w{1,30}_)?model_to_vllm|broadcast_to_vllm|"
            r"_broadcast_to_vllm|refit|load_weights_from|broadcast_to_\w*engines?\b|broadcast_weights|weight_(?:transfer|sync)\w*(?:_sender|\.send|/)|"
            r":_(?:sync|iter)_\w*params\w*(?=: .*(?:full_tensor|summon_full_params))|"
            r"rollout_mode|sync_model_weights|update_policy_weights|push_weights|megatron_to_hf|sharding_manager[\w/.]*:__enter__",
        ),
        (
            "rollout",
            r"unwrap_model_for_generation|generate_sequences|:batch_generation\b|_generate_and_score_completions|:generate_rollouts|:make_experience|:_generate\b|unwrapped_model\.generate|"
            r"llm\.generate|vllm/v1/worker\S*:execute_model|"
            r"generation/utils\.py:(?:generate|_sample|_greedy_search|_beam_search)|:rollout\b|determine_num_available_blocks|initialize_kv_cache|"
            r"capture_model|profile_run|"
            r":generate_trajectory\w*|local_kv_cache\(|hybrid_engine\.py:(?:generate|retake_inference_cache)\b",
        ),
        (
            "eval",
            r"evaluation_loop|prediction_loop|prediction_step|:evaluate\b|:_evaluate\b|nested_concat|evaluate_and_print_results|validation_step|"
            r":validate\b|:generate_example\b|pad_across_processes|torch_pad_and_concatenate|eval_step|run_evaluation|val_step|trainer\.evaluate\(|trainer\.predict\(|"
            r"inference_on_dataset|evaluation/evaluator\.py|sentence_transformers/\S*evaluation/|diffusers/pipelines/\S*:__call__|"
            r":(?:single|multi)_gpu_test\b|runner/loops\.py:run_iter: \S+ = self\.runner\.model\.(?:val|test)_|"
            r":after_(?:train|val|test)_(?:epoch|iter): .*evaluat|_eval_model\b|:perform_\w*validation\b|"
            r":(?!\w*(?:train|fit|log_save))\w{1,30}_(?:eval|evaluate|evaluation|validation|validate): |"  # train_and_eval trains too
            # MONAI, nnU-Net and mmsegmentation go over a whole image or volume window by window
            r"\bsliding_window_inference\(|:slide_inference\b|: (?:val|valid|test)_(?:outputs?|preds?|logits)\s?=|"
            r"\bmodel\.(?:predict|evaluate)\(|keras/\S*:predict\b|torchmetrics/\S*:(?:wrapped_func|compute)\b|"
            # a script's own loop: a function named for it outside test files, or a call that is handed a validation loader and no training loader
            r"^(?!test_|tests/)[^:]{1,200}:(?:do_|run_|log_|_)?(?:test|valid|validate|validation|eval|evaluate|evaluation|val)"
            r"(?:_(?:epoch|one_epoch|loop|model|predictions?|loss|iter|batch|set|metrics?|scores?|net|network|acc\w*|all|ddp))?: |"
            r"^(?!.*train)[^:]{1,200}:[\w<>]{1,80}: .*\b(?:val|valid|validation|test|eval)_?(?:data_?)?loader\b|\bevaluator\.\w+\(",
        ),
        (
            "load",
            r"from_pretrained|:on_train_begin\b|:on_fit_start\b|_load_pretrained_model|_load_state_dict_into|caching_allocator_warmup|load_checkpoint_in_model|"
            r"load_checkpoint_and_dispatch|dispatch_model|"
            r"prepare_model_for_kbit_training|_prepare_model_for_kbit|load_model\b|:get_model\b|setup_model|_setup_model|model_provider|build_model|"
            r":initialize: engine|deepspeed/__init__\.py:initialize|"
            r"accelerator\.prepare\(|[:.]_prepare_deepspeed|[:.]_prepare_fsdp|_create_fp32_partitions|_setup_for_real_optimizer|fsdp2_prepare_model|:prepare_model|init_model|:_init_model|"
            r"FullyShardedDataParallel\(|fully_shard\(|:fully_shard|"
            r"fully_sharded_data_parallel\.py:__init__|distributed\.py:__init__|initialize_optimizer_states|_place_model|_move_model_to_device|"
            r"resize_token_embeddings|preprocess_corda|initialize_lora_eva|get_eva_state_dict|create_ref(?:erence)?_model|"
            # a model is copied for its average (timm, mmengine, torch swa_utils, diffusers) as the run is set up
            r"(?:^|[\s=.(])(?:\w*model_?ema\w{0,3}|ema(?:_?model|hook|callback)?\w{0,3}|averagedmodel|exponentialmovingaverage)\(|"
            r"\bema_\w+\.(?:to|cuda)\(|"
            # JAX: a state of training is made by one function, and laid out on the devices
            r"(?<!_worker_loop: )\binit_fn\(|\b(?!worker)\w+_init_fn\(|create_train_?state|TrainState\.create\(|:setup_initial_state: [^\n]*jit|"
            r"jax_utils\.replicate\(|device_put_replicated|"
            r":cast_(?:training|trainable)_param\w*|core_model_loading\.py|quantizers/quantizer_\w+\.py|:load_shard_file\b|bitsandbytes/nn/modules\.py:_quantize\b|"
            r"self\.module\.to\(self\.device\)|get_peft_model|inject_adapter|init_worker|load_pretrained|convert_and_load_state_dict|:init_adapter\b|"
            r"nn/modules/module\.py:(?:to|cuda|float|half|bfloat16)\b|"
            r": (?!(?:self\.)?best)[^\n]*\bdeepcopy\((?:self\.)?\w*model\)|optim\w*/\S*\.py:__init__",  # the best so far is kept in training
        ),
    )
)
# Megatron-LM resumes within what sets the model up (training/training.py setup_model_and_optimizer -> load_checkpoint)
_SETS_UP, _WITHIN = lazily(r"setup_model_and_optimizer"), lazily(r":load_checkpoint\b|: .*\bload_checkpoint\(")
_ENGINE_START = lazily(
    r"vllm/(?:engine|v1/engine|entrypoints|executor|v1/executor|worker)\S*:(?:__init__|from_engine_args|_initialize_kv_caches|initialize_from_config|"
    r"_init_executor)|sglang/srt/\S*:(?:__init__|launch)",
    re.I,
)

# Within a step, the innermost frame that tells.
_INNER: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (phase, lazily(pattern, re.IGNORECASE))
    for phase, pattern in (
        (
            "step",
            r"torch/optim/|paddle/optimizer/|optimi[sz]ers?\.(?:\w{1,20}_)?step\(|:_optimizer_step|optimizer\S*:step\b|_take_model_step|bitsandbytes/optim|_foreach_|multi_tensor_adam|"
            r"apex/optimizers|transformer_engine/pytorch/optimizers|"
            r"clip_grad_norm|:clip_grads?\w*|:(?:get_|_get_|compute_|calc\w*_|_)?(?:total_|global_)?grad_norm\w*|load_(?:megatron|fsdp)_optimizer|move_optimizer_to_|reload_(?:\w+_)?states|_init_group|stage3\.py:step|stage_1_and_2\.py:step|engine\.py:step|unscale_|offload_optimizer|backload",
        ),
        (
            "backward",
            r"autograd/__init__\.py|_engine_run_backward|run_backward|\.backward\(|:backward\b|(?<!forward_)backward_step|(?<!forward)_backward_|reduce_grads|"
            r"reduce_scatter_grad|utils/checkpoint\.py:(?:backward|unpack|recompute)",
        ),
        (
            "loss",
            r"loss/loss_utils|ForCausalLMLoss|fixed_cross_entropy|\bcross_entropy\(|functional\.py:cross_entropy|:cross_entropy|log_softmax\(|modules/loss\.py",
        ),
        (
            "forward",
            r"modeling_(?!utils)\w+\.py|_call_impl|:forward\b|:compute_loss\b|:_compute_loss|model\(|nn/functional\.py|forward_step|:forward_\w+|"
            r"create_block_mask|flex_attention|training_step",
        ),
    )
)


def phase_of(frames: Sequence[Frame]) -> tuple[str, Frame] | None:
    """The phase and the frame that decided it; ``None`` where no frame tells."""
    described = [f"{frame.file}:{frame.function}: {frame.code}" for frame in frames]
    stepping = next(
        (
            i
            for i, text in enumerate(described)
            if re.search(r":training_step|:train_step\b|:train_one_epoch|:train_batch\b|:backward\b|\boptimi[sz]er\w*\.step\(", text)
        ),
        None,
    )
    for index, text in enumerate(described):
        if _ENGINE_START.search(text):
            return "load", frames[index]
        for phase, pattern in _ENCLOSING:
            if pattern.search(text) and not (phase == "load" and stepping is not None and index > stepping):
                within = _SETS_UP.search(text) and next((n for n, inner in enumerate(described) if n > index and _WITHIN.search(inner)), None)
                return ("resume", frames[within]) if within else (phase, frames[index])
    for index in range(len(described) - 1, -1, -1):
        for phase, pattern in _INNER:
            if pattern.search(described[index]):
                if phase in ("forward", "loss") and (outer := _recomputing(described[:index])) is not None:
                    return "backward", frames[outer]
                return phase, frames[index]
    return None


def _recomputing(described: Sequence[str]) -> int | None:
    """Index of a backward frame that encloses a forward: checkpointing recomputes the block."""
    return next(
        (
            i
            for i, text in enumerate(described)
            if re.search(
                r"_engine_run_backward|run_backward\(|autograd/__init__\.py:backward|"
                r"(?<!forward_)backward_step\(",
                text,
            )
        ),
        None,
    )


_PROGRESS: tuple[tuple[str | None, re.Pattern[str]], ...] = tuple(
    (phase, lazily(pattern, re.IGNORECASE))
    for phase, pattern in (
        (
            "eval",
            r"\*{3,}\s*Running (?:Evaluation|Prediction)|\b(?:start\w*|begin\w*|running) (?:the |to )?(?:evaluat\w+|validat\w+)|"
            r"^\W{0,4}Val(?:idation)? (?:Step|Iter\w*|Batch)\W{0,4}\d|^\s*(?:Evaluation|Evaluating|Validation|eval)\b.{0,20}(?:\d+%|\d+/\d+)",
        ),
        ("save", r"Saving (?:model )?checkpoint|saving checkpoint|Saving model|Model weights saved|Configuration saved in"),
        (
            "resume",
            r"Resum(?:ing|e) (?:training )?from|Loading checkpoint from|successfully loaded checkpoint|Continuing training from checkpoint|"
            r"loading optimizer",
        ),
        (
            "sync",
            r"update_weights_from_(?:distributed|tensor|disk|ipc)|\b(?:sync(?:ing|hroni[sz]ing)|broadcasting|updating|refitting) (?:\w+ ){0,3}weights\b|"
            r"\bweight (?:sync\w*|update|transfer)\b",
        ),
        ("merge", r"\bmerge_and_unload\b|\bMerging (?:the )?(?:LoRA|adapters?|weights)\b"),
        (
            "load",
            r"Loading (?:checkpoint shards|safetensors|pipeline components|model|weights)|Memory stats after model init|model loading|"
            r"Materializing param",
        ),
        (None, r"\*{3,}\s*Running training|'loss':|\bloss[ =:]|\b(?:step|iteration|iter)\b[ =:]*\s*(?:[2-9]|\d{2,})\b"),
    )
)


def phase_of_progress(lines: Sequence[str]) -> tuple[str, str] | None:
    """The phase that a log's last telling line announces, and that line; ``None`` where training was under way or nothing tells."""
    for text in reversed(lines):
        if len(text) > 600 or "ried to allocate" in text:
            continue
        for phase, pattern in _PROGRESS:
            if pattern.search(text):
                return None if phase is None else (phase, text)
    return None
