"""The job file: what is read, what is refused and with which words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.job import Job, JobError, fields, read_job
from advisor.stating import put


def test_what_is_not_written_is_unknown() -> None:
    job = read_job("version: 1\nbatch: {micro_batch: 4}")
    assert job.batch.micro_batch == 4
    assert job.batch.seq_len is None and job.load is None and job.get("load.dtype") is None


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("batch: {micro_bach: 1}", "did you mean 'batch.micro_batch'"),
        ("bathc: {}", "did you mean 'batch'"),
        ("batch: {micro_batch: 0}", "greater than or equal to 1 (read 0)"),
        ("batch: {micro_batch: 1000000000000}", "less than or equal to"),
        ("batch: {micro_batch: true}", "batch.micro_batch: a number is expected, not true or false (read True)"),
        ("batch: {lengths: {histogram: [[true, 3]]}}", "not true or false"),
        ("rollout: {memory_fraction: yes}", "not true or false"),
        ("batch: 3", "'batch' is a section; its fields are batch.micro_batch, batch.seq_len"),
        ("batch: {seq_len: -5}", "greater than or equal to 1"),
        ("method: {kind: loar}", "input should be 'full'"),
        ("- 1\n- 2", "a list"),
        ("{", "neither YAML nor JSON"),
        ("a: &a [1]\nb: *a", "aliases"),
        ("parallel: {pipeline: 2, pipeline_layout: [1, 2, 3]}", "no multiple"),
        ("rollout: {memory_fraction: .nan}", "finite"),
    ],
)
def test_refuses_with_what_was_read_and_what_is_right(text: str, part: str) -> None:
    with pytest.raises(JobError) as caught:
        read_job(text)
    assert part in str(caught.value)


def test_no_number_of_a_job_is_read_from_a_truth_value() -> None:
    taken = [path for path in fields() if _holds_true_as_a_number(path)]
    assert taken == []


def _holds_true_as_a_number(path: str) -> bool:
    try:
        value = put(Job(), path, True).get(path)
    except JobError:
        return False
    return value is not True


def test_but_changes_some_fields_and_leaves_the_others() -> None:
    job = read_job({"batch": {"micro_batch": 4, "seq_len": 128}})
    changed = job.but(batch={"micro_batch": 1}, rollout={"engine": "vllm"})
    assert (changed.batch.micro_batch, changed.batch.seq_len, changed.get("rollout.engine")) == (1, 128, "vllm")
    assert changed.but(rollout=None).rollout is None
    assert job.batch.micro_batch == 4
    with pytest.raises(JobError):
        job.but(batch={"micro_batch": -1})


@given(st.dictionaries(st.sampled_from(["micro_batch", "seq_len", "gradient_accumulation"]), st.integers(1, 4096)))
def test_round_trip(batch: dict[str, int]) -> None:
    job = read_job({"name": "x", "batch": batch})
    assert read_job(job.to_yaml()) == job
    assert read_job(job.to_dict()) == job


def test_every_path_can_be_read() -> None:
    job = Job()
    assert all(job.get(path) is None for path in fields() if path != "version")
    assert len(fields()) == len(set(fields()))


def test_but_reaches_into_a_section_within_a_section() -> None:
    job = read_job({"rollout": {"engine": "vllm", "trainer_offloaded": {"parameters": True}}})
    changed = job.but(rollout={"trainer_offloaded.optimizer": True})
    assert changed.get("rollout.trainer_offloaded.parameters") is True
    assert changed.get("rollout.trainer_offloaded.optimizer") is True
    assert job.but(rollout={"trainer_offloaded": {"optimizer": True}}) == changed


class Version(str):
    """As torch.__version__ is."""


class Scalar:
    """As numpy's scalars are: no subclass of int, and ``item`` gives one."""

    def item(self) -> int:
        return 3


def test_numbers_and_texts_of_live_objects_become_plain() -> None:
    job = read_job(
        {"version": 1, "batch": {"micro_batch": Scalar()}, "framework": {"versions": {"torch": Version("2.9.0")}}, "method": {"targets": ("q_proj",)}}
    )
    assert job.to_dict() == {
        "version": 1,
        "batch": {"micro_batch": 3},
        "framework": {"versions": {"torch": "2.9.0"}},
        "method": {"targets": ["q_proj"]},
    }
    assert type(job.to_dict()["framework"]["versions"]["torch"]) is str
    assert job.but(batch={"seq_len": Scalar()}).batch.seq_len == 3


def test_answers_in_quotes_and_depth() -> None:
    assert read_job({"version": 1, "activations": {"compile": "yes"}, "rollout": {"trainer_offloaded": {"parameters": "Off"}}}).to_dict() == {
        "version": 1,
        "activations": {"compile": True},
        "rollout": {"trainer_offloaded": {"parameters": False}},
    }
    deep = '{"a":' * 900 + "1" + "}" * 900
    with pytest.raises(JobError, match=r"unknown key 'foo'; batch.micro_batch: input should be a whole number|batch.micro_batch: .*; unknown key 'foo'"):
        read_job('{"version": 1, "batch": {"micro_batch": "x"}, "foo": ' + deep + "}")
    with pytest.raises(JobError, match="'model' is a section"):
        read_job('{"version": 1, "model": [' + deep + "]}")


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"batch.micro_batch": 1}, "keys are nested, as in batch: {micro_batch: ...}"),
        ({"activations": {"kernels": ["liger"]}}, "activations.kernels.0: input should be 'rmsnorm', 'swiglu', 'rope', 'layernorm' or 'lora'"),
        ({"activations": {"kernels": "rope"}}, "activations.kernels: input should be a list"),
        ({"version": 2.0}, "version: input should be 1 (read 2.0)"),
        ({"hardware": {"gpu": 3}}, "hardware.gpu: input should be a text or a mapping of name and memory_gib"),
    ],
    ids=["dotted", "choice", "list", "version", "gpu"],
)
def test_says_what_the_field_takes(data: dict[str, object], says: str) -> None:
    with pytest.raises(JobError) as refused:
        read_job({"version": 1, **data})
    assert says in str(refused.value)


def test_empty_sections_and_whole_floats_are_read() -> None:
    assert read_job("version: 1.0\nbatch:\nload:\n").to_dict() == {"version": 1}
    with pytest.raises(JobError, match="line 3"):
        read_job("version: 1\nbatch: {micro_batch: 1\nfoo: ]")
