"""nvidia-smi and its kin; memory figures of logs; summaries and statistics; printed settings; remarks."""

from __future__ import annotations

import pytest

from advisor.reading import read

GIB, MIB = 1024**3, 1024**2

TABLE = """\
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 550.54.15              Driver Version: 550.54.15      CUDA Version: 12.4     |
|-----------------------------------------+------------------------+----------------------+
|   0  NVIDIA A100-SXM4-80GB          On  |   00000000:07:00.0 Off |                    0 |
| N/A   33C    P0             75W /  400W |   70114MiB /  81920MiB |     98%      Default |
|                                         |                        |             Disabled |
+-----------------------------------------+------------------------+----------------------+
|   1  NVIDIA A100-SXM4-80GB          On  |   00000000:0B:00.0 Off |                    0 |
| N/A   31C    P0             60W /  400W |       4MiB /  81920MiB |      0%      Default |
|                                         |                        |             Disabled |
+-----------------------------------------+------------------------+----------------------+
| Processes:                                                                              |
|  GPU   GI   CI        PID   Type   Process name                              GPU Memory |
|=========================================================================================|
|    0   N/A  N/A      4411      C   python                                      70100MiB |
+-----------------------------------------------------------------------------------------+
"""


def test_the_table() -> None:
    reading = read([("nvidia-smi.txt", TABLE)])
    first, second = reading.evidence.devices
    assert (first.index, first.name, first.used_bytes, first.total_bytes) == (0, "NVIDIA A100-SXM4-80GB", 70114 * MIB, 81920 * MIB)
    assert [(p.pid, p.used_bytes) for p in first.processes] == [(4411, 70100 * MIB)]
    assert (second.index, second.used_bytes, second.processes) == (1, 4 * MIB, ())
    assert reading.job.hardware.gpu == "a100-80gb"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "index, name, memory.used [MiB], memory.total [MiB]\n0, NVIDIA H100 80GB HBM3, 100 MiB, 81559 MiB\n1, NVIDIA H100 80GB HBM3, 4 MiB, 81559 MiB\n",
            [(0, 100), (1, 4)],
        ),
        ("index, memory.used [MiB], memory.total [MiB]\n0, 100, 81559\n1, 7, 81559\n", [(0, 100), (1, 7)]),
        ("|   0  NVIDIA GeForce RTX 3090   |  17323MiB / 24259MiB |     0%      Default |\n", [(0, 17323)]),
        ("GPU[0] : VRAM Total Memory (B): 68702699520\nGPU[0] : VRAM Total Used Memory (B): 10485760\n", [(0, 10)]),
        ("[0] NVIDIA A100-SXM4-80GB | 33'C,   0 % |    12 / 81920 MB | me(12M)\n", [(0, 12)]),
    ],
)
def test_other_forms(text: str, expected: list[tuple[int, int]]) -> None:
    devices = read([("smi", text)]).evidence.devices
    assert [(d.index, (d.used_bytes or 0) // MIB) for d in devices] == expected


def test_processes_of_several_cards_without_the_cards() -> None:
    text = "| GPU   PID   Type   Process name              GPU Memory |\n" + "".join(
        f"|   {g}   77{p}      C   /usr/bin/python3            {m}MiB |\n" for g, p, m in ((0, 11, 900), (0, 12, 500), (1, 12, 700))
    )
    devices = read([("smi", text)]).evidence.devices
    assert [(d.index, [p.pid for p in d.processes], (d.used_bytes or 0) // MIB) for d in devices] == [(0, [7711, 7712], 1400), (1, [7712], 700)]


@pytest.mark.parametrize(
    ("line", "field", "gib"),
    [
        ("[INFO] [utils.py:782:see_memory_usage] MA 14.2 GB         Max_MA 15.0 GB         CA 16.5 GB         Max_CA 17 GB ", "allocated_bytes", 14.2),
        ("After init, memory allocated (GB): 3.10, memory reserved (GB): 4.50, device memory used/total (GB): 6.90/79.10", "device_used_bytes", 6.9),
        ("GPU memory usage after model load: 5.5GB (+0.5GB cache, +1.0GB misc)", "reserved_bytes", 6.0),
        ("{'loss': 1.4, 'memory/max_mem_allocated(gib)': 9.8, 'epoch': 0.01}", "peak_allocated_bytes", 9.8),
        (
            "[Rank 3] (after 1 iterations) memory (MB) | allocated: 1024.0 | max allocated: 2048.0 | reserved: 3072.0 | max reserved: 4096.0",
            "peak_reserved_bytes",
            4.0,
        ),
        ("step 12 allocated 3.1 GiB", "allocated_bytes", 3.1),
        ("iter 3 memory_allocated 1.01 GiB reserved 1.06", "reserved_bytes", 1.06),
        ("step:  1  loss: 12.2  memory: 22.83GiB(28.88%)  tps: 1,000", "peak_reserved_bytes", 22.83),
        ("step 200   len  4121  allocated_peak 64.1  reserved 67.9", "peak_allocated_bytes", 64.1),
        ("fsdp: torch.cuda.max_memory_allocated() = 75.1 GiB, runs", "peak_allocated_bytes", 75.1),
    ],
)
def test_figures(line: str, field: str, gib: float) -> None:
    samples = read([("log.txt", line)]).evidence.samples
    assert len(samples) == 1
    assert getattr(samples[0], field) == pytest.approx(gib * GIB, rel=1e-6)


def test_growth_keeps_its_steps() -> None:
    text = "".join(f"step {n} allocated {8 + n / 100:.2f} GiB\n" for n in range(100, 2000, 100))
    samples = read([("log.txt", text)]).evidence.samples
    assert [s.step for s in samples] == list(range(100, 2000, 100))


def test_figures_of_one_point_on_several_lines() -> None:
    text = (
        "Memory stats after model init:\n\tGPU peak memory allocation: 17.02 GiB\n\tGPU peak memory reserved: 17.04 GiB\n\tGPU peak memory active: 17.02 GiB\n"
    )
    samples = read([("log.txt", text)]).evidence.samples
    assert len(samples) == 1 and samples[0].label == "after model init"
    assert samples[0].peak_reserved_bytes == round(17.04 * GIB)


def test_the_summary_table() -> None:
    text = (
        "|                  PyTorch CUDA memory summary, device ID 0                 |\n|            CUDA OOMs: 1            |        cudaMalloc "
        "retries: 7         |\n"
        "|        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  |\n| Allocated memory      |  20480 MiB |  30720 MiB |    "
        "100 GiB |     80 GiB |\n"
        "|       from large pool |  20000 MiB |  30000 MiB |    100 GiB |     80 GiB |\n| GPU reserved memory   |  32768 MiB |  32768 MiB |     "
        "32 GiB |      0 B   |\n"
        "| Non-releasable memory |   4096 MiB |   4096 MiB |     32 GiB |      0 B   |\n"
    )
    evidence = read([("s.txt", text)]).evidence
    assert len(evidence.samples) == 1
    assert (evidence.samples[0].allocated_bytes, evidence.samples[0].peak_allocated_bytes, evidence.samples[0].reserved_bytes) == (20 * GIB, 30 * GIB, 32 * GIB)
    assert any(line.text == "num_alloc_retries: 7" for line in evidence.lines)


def test_the_statistics_dictionary() -> None:
    text = (
        "OrderedDict([('allocated_bytes.all.current', 1073741824), ('allocated_bytes.all.peak', 2147483648), ('num_alloc_retries', 3), "
        "('reserved_bytes.all.current', 3221225472)])"
    )
    evidence = read([("s.txt", text)]).evidence
    assert (evidence.samples[0].allocated_bytes, evidence.samples[0].reserved_bytes) == (GIB, 3 * GIB)


def test_what_a_run_prints_of_itself() -> None:
    text = (
        "  Instantaneous batch size per device = 4\n  Gradient Accumulation steps = 8\nPYTORCH_CUDA_ALLOC_CONF=expandable_segments:True,max_split_size_mb:128\n"
        "- `transformers` version: 4.45.1\n- PyTorch version (GPU?): 2.5.1+cu124 (True)\n***** Running Evaluation *****\n  Num examples = 100\n  "
        "Batch size = 16\n"
        "GPU: NVIDIA H100 80GB HBM3 x 1\n"
    )
    job = read([("log.txt", text)]).job
    assert (job.batch.micro_batch, job.batch.gradient_accumulation) == (4, 8)
    assert job.eval is not None and job.eval.micro_batch == 16
    assert job.framework.allocator == {"expandable_segments": True, "max_split_size_mb": 128}
    assert dict(job.framework.versions or {}) == {"transformers": "4.45.1", "torch": "2.5.1+cu124"}
    assert (job.hardware.gpu, job.hardware.gpus_per_node) == ("h100-80gb", 1)


def test_the_errors_advice_is_no_allocator_setting() -> None:
    text = (
        "torch.OutOfMemoryError: CUDA out of memory. If reserved but unallocated memory is large try setting "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
    )
    assert read([("e", text)]).job.framework.allocator is None


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ("Llama-3.1-8B on an RTX 4090?", "hardware.gpu", "rtx4090-24gb"),
        ("Llama-3.1-8B on an RTX 4090?", "model.name", "meta-llama/Llama-3.1-8B"),
        ("8 x A100-SXM4-40GB, full fine-tune", "hardware.gpus_per_node", 8),
        ("8 x A100-SXM4-40GB, full fine-tune", "hardware.gpu", "a100-40gb"),
        ("we use batch size 16 and max_seq_length 512", "batch.micro_batch", 16),
        ("we use batch size 16 and max_seq_length 512", "batch.seq_len", 512),
    ],
)
def test_remarks(text: str, field: str, value: object) -> None:
    assert read([("question.txt", text)]).job.get(field) == value


def test_what_collect_prints_is_read_back() -> None:
    text = (
        "advisor collect 1\nversion.torch: 2.5.1\ngpu.0: NVIDIA H100 80GB HBM3, 85520809984, 1048576\ngpus: 8\nenv.PYTORCH_CUDA_ALLOC_CONF: "
        "expandable_segments:True\nhost_memory_bytes: 1099511627776\nmystery: 3\n"
    )
    reading = read([("paste", text)])
    assert reading.job.hardware.gpu == "h100-80gb" and reading.job.hardware.gpus_per_node == 8
    assert reading.job.hardware.host_memory_gib == 1024
    assert reading.job.get("framework.versions.torch") == "2.5.1"
    assert reading.job.get("framework.allocator.expandable_segments") is True
    assert any("mystery" in n.text for n in reading.evidence.not_understood)


def test_the_capacity_names_the_card_only_where_one_fits() -> None:
    text = (
        "CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; {} total capacity; 13.38 GiB already allocated; 6.38 MiB free; 13.67 GiB "
        "reserved in total by PyTorch)"
    )
    only = read([("e", text.format("14.76 GiB"))]).evidence.fact("hardware.gpu")
    assert only is not None and (only.value, only.kind) == ("t4-16gb", "inferred")
    several = read([("e", text.format("79.15 GiB"))]).evidence.fact("hardware.gpu")
    assert several is not None and several.kind == "assumed" and several.alternatives


def test_a_card_that_is_not_known_is_described_by_what_is_listed() -> None:
    row = (
        "|   1  GeForce GTX 77...   Off  | 00000000:02:00.0 Off |                  N/A |\n| 58%   84C    P2   241W / 250W |  3123MiB / "
        "4041MiB |     97%      Default |\n"
    )
    gpu = read([("smi", row)]).job.hardware.gpu
    assert gpu is not None and not isinstance(gpu, str) and gpu.name.startswith("GeForce GTX 77")


def test_the_rest_of_a_wrapped_failure_is_no_figure() -> None:
    text = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 224.00 MiB.\nOf the allocated memory 38.43 GiB is allocated by PyTorch, "
        "and 338.79 MiB is reserved\n"
    )
    assert read([("e", text)]).evidence.samples == ()


def test_what_stays_and_the_peak_of_one_line_share_its_unit() -> None:
    (sample,) = read([("log.txt", "it 4 alloc 7.50, peak: 21.25 GiB\n")]).evidence.samples
    assert (sample.allocated_bytes, sample.peak_allocated_bytes) == (round(7.5 * GIB), round(21.25 * GIB))
    assert not read([("log.txt", "allocator: 7.50 GiB segments\n")]).evidence.samples
