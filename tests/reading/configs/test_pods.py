"""Kubernetes manifests: what the containers run is the job, as if it stood on a command line."""

from __future__ import annotations

from typing import Any

import pytest

from advisor.reading.configs import ConfigReading, read_config

MANIFEST = """
apiVersion: kubeflow.org/v1
kind: PyTorchJob
spec:
  pytorchReplicaSpecs:
    Master:
      replicas: 1
      template:
        spec:
          containers:
            - name: pytorch
              command: ["torchrun"]
              args:
                - "--nproc_per_node=8"
                - train.py
                - "--model_name_or_path"
                - meta-llama/Llama-3.1-8B
                - "--per_device_train_batch_size"
                - "4"
                - "--bf16"
                - "true"
              env:
                - name: PYTORCH_CUDA_ALLOC_CONF
                  value: expandable_segments:True
              resources:
                limits:
                  nvidia.com/gpu: 8
    Worker:
      replicas: 3
"""

JOB = """
kind: Job
spec:
  parallelism: 2
  completions: 2
  template:
    spec:
      containers:
      - name: train
        command:
        - bash
        - -c
        - |
          cd /app
          accelerate launch --num_processes 4 sft.py --per_device_train_batch_size 2 --model_name_or_path a/b-7B --num_train_epochs 1
        resources: {requests: {nvidia.com/gpu: "4"}}
"""


def reading(text: str) -> ConfigReading:
    found = read_config("job.yaml", text)
    assert found is not None
    return found


def facts(text: str) -> dict[str, Any]:
    return {fact.field: fact.value for fact in reading(text).facts}


def test_a_command_in_words() -> None:
    found = facts(MANIFEST)
    assert (found["model.name"], found["batch.micro_batch"], found["precision.compute"]) == ("meta-llama/Llama-3.1-8B", 4, "bf16")
    assert (found["hardware.gpus_per_node"], found["hardware.nodes"]) == (8, 4)
    assert found["framework.allocator"] == {"expandable_segments": True}


def test_each_fact_has_the_line_of_its_word() -> None:
    where = {fact.field: fact.where for fact in reading(MANIFEST).facts}
    lines = MANIFEST.splitlines()
    for field, word in (("batch.micro_batch", "--per_device_train_batch_size"), ("hardware.nodes", "replicas: 1")):
        assert word in lines[int(str(where[field]).rpartition(":")[2]) - 1]


def test_a_script_in_one_word() -> None:
    found = facts(JOB)
    assert (found["model.name"], found["batch.micro_batch"], found["hardware.gpus_per_node"], found["hardware.nodes"]) == ("a/b-7B", 2, 4, 2)


@pytest.mark.parametrize(
    "text", ["containers: 3\n", "containers:\n- 5\n- [a]\n- {command: {a: b}, env: x, resources: [1]}\n", "a: {containers: [{args: [[x]]}]}\n"]
)
def test_manifests_that_hold_something_else(text: str) -> None:
    read_config("job.yaml", text)


def test_aliases_are_not_followed_without_end() -> None:
    levels = "".join(f"a{i}: [{{x: &b{i} {{y: {{z{i}: [{', '.join([f'*b{i - 1}'] * 9 if i else ['1'])}]}}}}}}]\n" for i in range(20))
    read_config("job.yaml", "containers: []\n" + levels)  # 9 to the 20th values, were they written out


def test_a_launcher_without_cards_is_no_node() -> None:
    kind = "    {}:\n      replicas: {}\n      template:\n        spec:\n          containers:\n"
    kind += "          - name: x\n            command: [python, train.py, --bf16]\n{}"
    gpus = "            resources:\n              limits:\n                nvidia.com/gpu: 8\n"
    text = "kind: MPIJob\nspec:\n  mpiReplicaSpecs:\n" + kind.format("Launcher", 1, "") + kind.format("Worker", 2, gpus)
    assert facts(text)["hardware.nodes"] == 2
