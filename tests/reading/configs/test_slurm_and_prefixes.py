"""Slurm's options as nodes, GPUs and card; and what stands before a launcher."""

from __future__ import annotations

import pytest

from advisor.reading import read
from advisor.reading.configs import slurm
from advisor.reading.configs.shell_prefixes import prefix


def hardware(text: str) -> tuple[int | None, int | None, object]:
    found = read([("job.sh", text)]).job.hardware
    return found.nodes, found.gpus_per_node, found.gpu


@pytest.mark.parametrize(
    ("asks", "nodes", "gpus", "gpu"),
    [
        ("--nodes=3 --gpus-per-node=6", 3, 6, None),
        ("-N 3 --gres=gpu:6", 3, 6, None),
        ("-N3 --gres gpu:h100:6", 3, 6, "h100-80gb"),
        ("--nodes=2-4 --gpus-per-node=l40s:4", 2, 4, "l40s-48gb"),
        ("--nodes 2 -G 12", 2, 6, None),
        ("--nodes 2 --gpus=a40:12", 2, 6, "a40-48gb"),
        ("-n 12 --ntasks-per-node=4 --gpus-per-task=1", 3, 4, None),
        ("--nodes=2 --ntasks=12", 2, 6, None),
        ("-N 2 --ntasks-per-node=1 --gres=gpu:6,nvme:1", 2, 6, None),
        ("--nodes=2 --ntasks-per-node=1", 2, None, None),
        ("--gres=gpu", None, 1, None),
        ("--gres=nvme:2", None, None, None),
        ("--nodes=2 --tres-per-node=gres/gpu:6", 2, 6, None),
        ("--nodes=2 --gres=gpu:6 # --gres=gpu:4", 2, 6, None),
        ("--nodes=2 --exclusive --gpus-per-node=6 --job-name gpu:4", 2, 6, None),
    ],
)
def test_what_a_job_asks_slurm_for(asks: str, nodes: int | None, gpus: int | None, gpu: str | None) -> None:
    assert hardware(f"#!/bin/bash\n#SBATCH {asks}\nsrun python finetune.py --model_name_or_path gpt2\n") == (nodes, gpus, gpu)
    assert hardware(f"srun {asks.partition(' #')[0]} python finetune.py --model_name_or_path gpt2\n") == (nodes, gpus, gpu)


def test_a_step_asks_over_the_job_and_a_launcher_over_both() -> None:
    job = "#!/bin/bash\n#SBATCH -N 4\n#SBATCH --gres=gpu:8\n"
    assert hardware(job + "srun --nodes=2 python train.py") == (2, 8, None)
    assert hardware(job + "srun -N 1 --gres=gpu:2 torchrun --nproc_per_node 2 train.py") == (1, 2, None)
    assert hardware(job + "srun -l torchrun --nnodes 3 --nproc-per-node 5 train.py") == (3, 5, None)
    assert hardware(job + "##SBATCH -N 16\npython train.py") == (4, 8, None)


def test_slurms_variables_stand_for_what_was_asked() -> None:
    job = "#!/bin/bash\n#SBATCH --nodes=3\n#SBATCH --gpus-per-node=6\n#SBATCH --ntasks-per-node=1\n"
    assert hardware(job + "srun torchrun --nnodes=$SLURM_NNODES --nproc_per_node=$SLURM_GPUS_ON_NODE train.py") == (3, 6, None)
    assert hardware(job + "accelerate launch --num_machines $SLURM_JOB_NUM_NODES --num_processes $((SLURM_NNODES * 6)) t.py") == (3, 6, None)


def test_the_card_of_a_type_without_memory_is_the_one_whose_total_the_error_prints() -> None:
    error = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 39.39 GiB of which 1.04 GiB is free."
    found = read([("job.sh", "#SBATCH --gres=gpu:a100:4\nsrun python train.py --model_name_or_path gpt2"), ("e.txt", error)])
    assert found.job.hardware.gpu in ("a100-40gb", "a100-pcie-40gb")


@pytest.mark.parametrize(
    "before",
    [
        "srun", "srun -W 60 -l", "srun --wait 60 --kill-on-bad-exit=1",
        "srun -l --cpu-bind=none", "srun --mpi pmix -c 12", "numactl --interleave=all", "numactl -N 0 -m 0", "env FOO=1 BAR=2", "env -u FOO", "nohup",
        "time", "sudo -E", "sudo -u me FOO=1", "stdbuf -oL -eL", "stdbuf -o L", "nice -n 10", "timeout -k 10 2h", "taskset -c 0-15",
        "apptainer exec --nv -B /data:/data image.sif", "singularity exec --nv --bind /scratch --pwd /w image.sif",
        "docker run --rm -it --gpus all --shm-size 8g -v /a:/b -e X=1 nvcr.io/nvidia/pytorch:24.05-py3", "docker exec -it box",
        "podman run --device nvidia.com/gpu=all --ipc=host img", "nsys profile -t cuda,nvtx -o out", "conda run -n llm --no-capture-output",
        "srun --container-image=img.sqsh --no-container-mount-home nohup env A=1 numactl -m 1", "sudo docker run --gpus all img",
        "mpirun -np 1 -x PATH -mca btl ^x", "mpirun --merge-stderr-to-stdout -np 1", "mpiexec -l -n 1", "numactl --localalloc",
        "horovodrun --gloo -np 1",
        "srun singularity exec --nv img.sif bash -c 'cd /w && exec", "FOO=1 time -p",
    ],
)  # fmt: skip
def test_what_only_starts_a_launcher_hides_nothing_of_it(before: str) -> None:
    end = "'" if before.count("'") % 2 else ""
    found = read([("run.sh", f"{before} torchrun --nnodes 2 --nproc_per_node 6 -m axolotl.cli.train cfg.yml{end}\n")])
    assert (found.job.hardware.nodes, found.job.hardware.gpus_per_node) == (2, 6)
    assert found.job.framework.name == "axolotl"


@pytest.mark.parametrize(
    ("command", "nodes", "gpus"),
    [
        ("mpirun -np 12 -npernode 6 --allow-run-as-root -x NCCL_DEBUG=INFO python train.py", 2, 6),
        ("mpirun -np 8 -H one:4,two:4 -bind-to none -mca pml ob1 python train.py", 2, 4),
        ("mpiexec -n 4 python train.py", None, 4),
        ("docker run --gpus 3 --rm img python train.py", None, 3),
        ("docker run --gpus '\"device=0,2\"' img python train.py", None, 2),
        ("docker run -e CUDA_VISIBLE_DEVICES=0,1,5 img python train.py", None, 3),
        ("sbatch --nodes=3 --gres=gpu:5 --wrap='python train.py'", 3, 5),
    ],
)
def test_what_a_prefix_says_of_the_gpus(command: str, nodes: int | None, gpus: int) -> None:
    assert hardware(command + " --model_name_or_path gpt2")[:2] == (nodes, gpus)


def test_a_command_of_its_own_has_no_prefix_and_an_image_may_be_the_program() -> None:
    assert prefix(["torchrun", "--nproc_per_node", "2"]) is None
    assert prefix([]) is None
    found = prefix(["docker", "run", "--gpus", "all", "vllm/vllm-openai", "--model", "x"])
    assert found is not None
    assert found.own
    assert found.at == 4


@pytest.mark.parametrize(
    "text", ["--nodes", "-N", "--gres=gpu:", "--gres=gpu:x:y", "--gpus=$N", "-", "--", "--nodes=0", "--nodes=-3", "--gres=,,,", "-N99999999999"]
)
def test_broken_options_say_nothing(text: str) -> None:
    given, _ = slurm.options(text.split())
    told = {key: value for key, value, _ in slurm.asked(given)}
    assert "nodes" not in told
    assert told.get("gpus_per_node", 1) == 1


@pytest.mark.parametrize("count", ["\u00b2", "\u0663", "9" * 5000, "0", "-1"], ids=["superscript", "arabic", "5000 digits", "zero", "negative"])
@pytest.mark.parametrize(
    "command", ["mpirun -np {} python t.py", "docker run --gpus {} img python t.py", "srun -N {} python t.py", "srun --gpus={} python t.py"]
)
def test_a_count_that_is_none_says_nothing(command: str, count: str) -> None:
    assert hardware(command.format(count)) == (None, None, None)
    assert hardware(f"#SBATCH -N {count}\n#SBATCH --gpus={count}\n{command.format(count)}") == (None, None, None)


def test_sbatchs_wait_takes_no_word() -> None:
    assert hardware("sbatch -W --wait -N 2 --gres=gpu:6 --wrap='python train.py --model_name_or_path gpt2'")[:2] == (2, 6)


@pytest.mark.parametrize("step", ["hostname --ip-address", "ray start --head --num-gpus 4 --block", "nvidia-smi", "/usr/bin/nvidia-smi -L"])
def test_a_step_beside_the_training_does_not_say_how_large_the_job_is(step: str) -> None:
    job = f"#SBATCH --nodes=3\n#SBATCH --gpus-per-node=4\nsrun --nodes=1 --ntasks=1 -w $head {step}\npython train.py --model_name_or_path gpt2\n"
    assert hardware(job) == (3, 4, None)
    assert hardware(job.replace(step, "python train.py --bf16 True"))[0] == 1


@pytest.mark.parametrize("command", ["mpirun -np 64 python t.py", "srun -n 64 python t.py", "srun --ntasks-per-node=32 python t.py"])
def test_more_processes_than_a_node_has_cards_are_no_cards(command: str) -> None:
    assert hardware(command)[1] is None
    assert hardware(command.replace("64", "8").replace("32", "8"))[1] == 8
