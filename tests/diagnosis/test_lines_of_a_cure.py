"""A cure has its line even where the job is taken as cured already, and only the failure shows that it is not."""

from advisor.diagnosis import diagnose

CODE = 'model = AutoModelForCausalLM.from_pretrained("mistralai/Mistral-7B-v0.1")\nmodel.to("cuda")\n'
ERROR = """Traceback (most recent call last):
  File "/workspace/job/train.py", line 2, in <module>
    model.to("cuda")
  File "/usr/lib/python3/dist-packages/torch/nn/modules/module.py", line 1340, in to
    return self._apply(convert)
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 172.00 MiB. GPU 0 has a total capacity of 23.69 GiB of which 100.00 MiB is free. \
Including non-PyTorch memory, this process has 23.58 GiB memory in use. Of the allocated memory 23.20 GiB is allocated by PyTorch, and 20.00 MiB is \
reserved by PyTorch but unallocated.
"""


def test_loading_in_16_bits_has_its_line() -> None:
    report = diagnose([("error.txt", ERROR), ("train.py", CODE)])
    first = report.plan.steps[0]
    assert (report.findings[0].cause, first.technique) == ("default-fp32-load", "load-in-16-bit")
    assert any("bfloat16" in line for lines in first.settings.values() for line in lines)
