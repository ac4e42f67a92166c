"""transformers' Trainer, watched by a callback. A failure for want of memory is explained under its traceback."""

from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from advisor.measurement.callback import watching

config = LlamaConfig(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2, vocab_size=96)
rows = [{"input_ids": [1, 2, 3, 4] * 4, "labels": [1, 2, 3, 4] * 4}] * 16
callback = watching(log="events.jsonl")
trainer = Trainer(
    model=LlamaForCausalLM(config),
    args=TrainingArguments(output_dir="out", per_device_train_batch_size=2, max_steps=6, report_to=[], save_strategy="no"),
    train_dataset=rows,
    callbacks=[callback],
)
trainer.train()
print(f"{len(callback.seen.findings)} faults; largest live size by phase: {callback.seen.peak_bytes()}")
