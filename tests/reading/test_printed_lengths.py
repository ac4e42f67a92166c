"""The spread of lengths that tools print."""

from advisor.diagnosis import diagnose
from advisor.reading import read


def test_numpys_percentiles() -> None:
    text = '>>> np.percentile([len(x) for x in data["input_ids"]], [50, 90, 99, 100])\narray([ 611. , 1184. , 2210. , 3950. ])\n'
    lengths = read([("log.txt", text)]).job.batch.lengths
    assert lengths is not None
    assert (lengths.p50, lengths.p99, lengths.max) == (611, 2210, 3950)


def test_percentiles_of_something_else() -> None:
    assert read([("log.txt", ">>> np.percentile(losses, [50, 99, 100])\narray([1.2, 2.3, 9.5])\n")]).job.batch.lengths is None


def test_pandas_describe() -> None:
    text = "df.text.str.len() // 4 tokens\ncount    52002.000000\nmean       310.1\nstd        400.2\nmin          4.0\n50%        210.0\nmax      19900.0\n"
    lengths = read([("log.txt", text)]).job.batch.lengths
    assert lengths is not None
    assert (lengths.p50, lengths.max) == (210, 19900)


def test_a_run_with_long_samples_that_failed_later_had_one_long_batch() -> None:
    text = (
        '>>> np.percentile([len(x) for x in data["input_ids"]], [50, 90, 99, 100])\narray([ 611. , 1184. , 2210. , 3950. ])\n'
        "{'loss': 1.4021, 'epoch': 0.0}\n{'loss': 1.3310, 'epoch': 0.0}\n{'loss': 1.2874, 'epoch': 0.01}\n"
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.33 GiB (GPU 0; 23.65 GiB total capacity; 20.61 GiB already allocated; "
        "2.04 GiB free; 21.16 GiB reserved in total by PyTorch)\n"
    )
    assert diagnose([("log.txt", text)]).findings[0].cause == "batch-outlier"


def test_durations_are_lengths_too() -> None:
    lines = [
        f"step {step}: max dur in batch {seconds} s, allocated max {held} GiB" for step, seconds, held in ((10, 17.3, 44.1), (20, 19.8, 48.6), (30, 11.0, 37.9))
    ]
    failed = "step 37: batch of 16, max dur 56.0 s -> CUDA out of memory on one rank, it dies there\nmanifest: mean 8.1 s, 99.9 % below 20 s, max 56.0 s"
    report = diagnose([("log.txt", "\n".join([*lines, failed]))])
    assert report.findings[0].cause == "batch-outlier"
