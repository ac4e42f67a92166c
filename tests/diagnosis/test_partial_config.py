"""A config with too few keys is left out with a sentence, wherever it was read."""

import json

from advisor.diagnosis import diagnose

ERROR = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 64.00 MiB. GPU 0 has a total capacity of 79.25 GiB of which 10.00 MiB is free.\n"


def test_a_partial_config_json() -> None:
    report = diagnose([("config.json", json.dumps({"model_type": "llama", "num_hidden_layers": 32, "max_position_embeddings": 131072})), ("log.txt", ERROR)])
    assert any("config was not used" in note for note in report.notes)


def test_keys_of_a_config_in_a_log_are_none() -> None:
    report = diagnose([("log.txt", f"model loaded: max_position_embeddings: 131072, model_type: llama, num_hidden_layers: 32\n{ERROR}")])
    assert report.run is not None and report.run.job.model.config is None
