"""Lengths of data: counted right in each form, nothing of the text kept, and the chance is the one that drawing shows."""

import csv
import gzip
import io
import json
import pickle
import random
import zipfile
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from advisor import csv_rows, lengths, rows
from advisor.cli import main
from advisor.rows import LengthsError


def zipped(content: bytes) -> bytes:
    with io.BytesIO() as held:
        with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("rows.txt", content)
        return held.getvalue()


@given(st.integers(0, 10**9))
def test_a_bucket_is_at_most_three_percent_above(tokens: int) -> None:
    assert tokens <= lengths.bucket(tokens) <= max(tokens * 1.032, tokens)


def test_forms_agree(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    rows = [{"text": "x" * n} for n in (4, 40, 400, 4000)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "b.json").write_text(json.dumps(rows))
    (tmp_path / "c.txt").write_text("".join(row["text"] + "\n" for row in rows))
    pandas.DataFrame(rows).to_parquet(tmp_path / "d.parquet")
    found = [lengths.measure(tmp_path / name) for name in ("a.jsonl", "b.json", "c.txt", "d.parquet")]
    assert all(f == found[0] for f in found)
    assert found[0].longest == ((1000, 3), (100, 2), (10, 1), (1, 0))


def test_parquet_is_read_within_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"text": ["x" * 4000] * 3000}), tmp_path / "d.parquet")
    assert lengths.measure(tmp_path / "d.parquet").samples == 3000
    for bound, value, says in (
        ("MAX_ROWS", 2999, "says that it holds 3,000 rows"),
        ("MAX_COLUMNS_BYTES", 100, "Give a part of it"),
        ("MAX_BATCH", 1 << 20, "3 MiB in 1,024 rows"),
        ("MAX_SECONDS", -1.0, "minutes of reading"),
    ):
        with monkeypatch.context() as tight:
            tight.setattr(rows, bound, value)
            with pytest.raises(LengthsError, match=says):
                lengths.measure(tmp_path / "d.parquet")
    (tmp_path / "cut.parquet").write_bytes((tmp_path / "d.parquet").read_bytes()[:200])
    with pytest.raises(LengthsError, match="no parquet file"):
        lengths.measure(tmp_path / "cut.parquet")


@pytest.mark.parametrize(("bound", "value", "says"), [("MAX_ROWS", 9, "more than 9 rows"), ("MAX_SECONDS", -1.0, "minutes of reading")])
def test_rows_and_seconds_are_bounded_in_every_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str, value: float, says: str) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n' * 2048)
    monkeypatch.setattr(rows, bound, value)
    with pytest.raises(LengthsError, match=says):
        lengths.measure(tmp_path / "a.jsonl")


@pytest.fixture
def on_disk(tmp_path: Path) -> Path:
    """As ``DatasetDict.save_to_disk`` of datasets 5.2 leaves it, a map's cache beside it."""
    pyarrow = pytest.importorskip("pyarrow")

    def save(folder: Path, shards: list[list[int]]) -> None:
        folder.mkdir(parents=True)
        names = []
        for number, sizes in enumerate(shards):
            table = pyarrow.table({"text": ["x" * 4 * size for size in sizes]})
            names.append(f"data-{number:05d}-of-{len(shards):05d}.arrow")
            with pyarrow.OSFile(str(folder / names[-1]), "wb") as sink, pyarrow.ipc.new_stream(sink, table.schema) as writer:
                writer.write_table(table)
        (folder / "cache-1f.arrow").write_bytes((folder / names[0]).read_bytes())
        (folder / "dataset_info.json").write_text(json.dumps({"features": {"text": {"dtype": "string", "_type": "Value"}}}, indent=2))
        (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names], "_format_type": None}, indent=2))

    save(tmp_path / "d" / "train", [[1, 2, 900], [3, 5]])
    save(tmp_path / "d" / "test", [[7000]])
    (tmp_path / "d" / "dataset_dict.json").write_text(json.dumps({"splits": ["test", "train"]}))
    return tmp_path / "d"


def test_a_data_set_on_disk_is_its_training_split(on_disk: Path) -> None:
    whole, split = lengths.measure(on_disk), lengths.measure(on_disk / "train")
    assert whole == split
    assert split.longest == ((900, 2), (5, 4), (3, 3), (2, 1), (1, 0))  # numbered as load_from_disk numbers them
    (on_disk / "train" / "data-00000-of-00002.arrow").write_bytes(b"no arrow")
    with pytest.raises(LengthsError, match="is no arrow file"):
        lengths.measure(on_disk)


def test_a_rehearsal_is_data_or_a_job(on_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    job = {
        "version": 1, "model": {"name": "meta-llama/Llama-3.1-8B"}, "method": {"kind": "lora"}, "precision": {"weights": "bf16"},
        "batch": {"micro_batch": 2, "seq_len": 8192, "gradient_accumulation": 1}, "hardware": {"gpu": "a100-80gb"}, "framework": {"name": "custom"},
    }  # fmt: skip
    (tmp_path / "job.json").write_text(json.dumps(job))
    assert main(["lengths", "d", "--job", "job.json", "--fits", "100", "--rehearsal", "r.jsonl"]) == 1
    assert [len(json.loads(line)["text"]) for line in (tmp_path / "r.jsonl").read_text().splitlines()] == [3600, 20]  # the worst batch of two
    assert main(["lengths", "d", "--job", "job.json", "--fits", "100", "--rehearsal", "r.yaml"]) == 1
    assert main(["estimate", "r.yaml"]) in (0, 1)
    assert (
        yaml.safe_load((tmp_path / "r.yaml").read_text())["batch"] | {"seq_len": 900, "micro_batch": 2}
        == yaml.safe_load((tmp_path / "r.yaml").read_text())["batch"]
    )
    assert main(["lengths", "d", "--fits", "100", "--rehearsal", "r.yaml"]) == 2


@pytest.mark.parametrize(
    ("row", "tokens"),
    [
        ({"input_ids": [1] * 77}, 77),
        ({"messages": [{"role": "user", "content": "a" * 100}, {"role": "assistant", "content": "b" * 99}]}, 50),
        ({"prompt": "a" * 20, "completion": "b" * 19}, 10),
        ({"instruction": "a" * 20, "input": "", "output": "b" * 18}, 10),
    ],
)
def test_rows(tmp_path: Path, row: dict[str, object], tokens: int) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps(row) + "\n")
    assert lengths.measure(tmp_path / "a.jsonl").longest == ((tokens, 0),)


@given(long=st.integers(0, 50), others=st.integers(0, 200), drawn=st.integers(0, 300))
def test_the_chance_is_a_chance_and_grows(long: int, others: int, drawn: int) -> None:
    now, next_ = lengths.chance(long, long + others, drawn), lengths.chance(long, long + others, drawn + 1)
    assert 0 <= now <= next_ + 1e-12 <= 1 + 1e-9


def test_the_chance_is_what_drawing_shows() -> None:
    draw = random.Random(3)
    population = [1] * 3 + [0] * 197
    hits = sum(any(draw.sample(population, 40)) for _ in range(4000)) / 4000
    assert lengths.chance(3, 200, 40) == pytest.approx(hits, abs=0.03)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    secret = "the text itself"
    (tmp_path / "d.jsonl").write_text("".join(json.dumps({"text": secret, "input_ids": [0] * (5000 if n == 70 else 100)}) + "\n" for n in range(100)))
    assert main(["lengths", "d.jsonl", "--fits", "4096", "--steps", "7", "--rehearsal", "r.json", "--json"]) == 1
    out = capsys.readouterr().out
    told = json.loads(out)
    assert told["longer"] == 1
    assert told["chance_by_step"]["10"] == pytest.approx(0.1)
    assert told["chance_by_step"]["7"] == pytest.approx(0.07)
    assert secret not in out
    assert json.loads((tmp_path / "r.json").read_text())["rows"] == [70]
    assert main(["lengths", "d.jsonl", "--fits", "6000"]) == 0
    assert main(["lengths", "none.jsonl"]) == 2
    (tmp_path / "bad.jsonl").write_text("{")
    assert main(["lengths", "bad.jsonl"]) == 2
    job = {
        "version": 1, "model": {"name": "meta-llama/Llama-3.1-8B"}, "method": {"kind": "lora"}, "precision": {"weights": "bf16"},
        "batch": {"micro_batch": 1, "seq_len": 2048}, "hardware": {"gpu": "a100-80gb"}, "framework": {"name": "custom"},
    }  # fmt: skip
    (tmp_path / "job.json").write_text(json.dumps(job))
    capsys.readouterr()
    assert main(["lengths", "d.jsonl", "--job", "job.json", "--json"]) in (0, 1)
    assert json.loads(capsys.readouterr().out)["fits_tokens"] > 100


@pytest.mark.parametrize(("seq_len", "longer", "code"), [(2048, 0, 0), (4096, 0, 0), (8192, 1, 1)])
def test_rows_are_cut_at_the_jobs_sequence_length(
    seq_len: int, longer: int, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "d.jsonl").write_text("".join(json.dumps({"input_ids": [0] * (5000 if n == 7 else 100)}) + "\n" for n in range(20)))
    job = {"version": 1, "model": {"name": "meta-llama/Llama-3.1-8B"}, "batch": {"micro_batch": 1, "seq_len": seq_len}, "hardware": {"gpu": "a100-80gb"}}
    (tmp_path / "job.json").write_text(json.dumps(job))
    command = ["lengths", "d.jsonl", "--job", "job.json", "--fits", "4096"]
    assert main([*command, "--json", "--rehearsal", "r.json"]) == code
    told = json.loads(capsys.readouterr().out)
    assert (told["longer"], told["cut_at"], told["cut"]) == (longer, seq_len, int(seq_len < 5000))
    assert told["chance_by_step"]["10"] == pytest.approx(0.5 if longer else 0.0)
    assert json.loads((tmp_path / "r.json").read_text())["tokens"] == [min(5000, seq_len)]
    assert main(command) == code
    assert ("comes into a batch" in capsys.readouterr().out) is (seq_len < 5000)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.zip", zipped(b"x\n" * 200_000), "packed"),
        ("a.jsonl.gz", gzip.compress(b'{"text": "a"}\n', mtime=0), "packed"),
        ("a.pkl", pickle.dumps(["a text"] * 9), "a pickle"),
        ("a.bin", pickle.dumps({"text": "a"}), "a pickle"),
        ("a", bytes(range(256)) * 20, "binary"),
        ("a.txt", "a row\n".encode("utf-16"), "UTF-16"),
        ("a.txt", b"a row\n" * 2000 + b"\0\0\n", "line 2001 is no text"),
        ("a.jsonl", b'{"input_ids": NaN}\n{"length": -4}\n{"a": 1}\n7\n{"messages": null}\n', "in none of 5 rows"),
    ],
)
def test_what_is_no_data_set_is_a_sentence(name: str, content: bytes, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / name).write_bytes(content)
    assert main(["lengths", str(tmp_path / name)]) == 2
    assert says in capsys.readouterr().err


def test_text_of_any_encoding_of_bytes_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("später läuft es über\n".encode("latin-1") * 3)
    (tmp_path / "B.JSONL").write_text('{"text": "abcdefgh"}\n')
    assert lengths.measure(tmp_path / "a.txt").longest[0] == (5, 0)
    assert lengths.measure(tmp_path / "B.JSONL").longest == ((2, 0),)


def test_rows_that_are_not_understood_are_counted_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "a.jsonl"
    data.write_text('{"text": ""}\n{"input_ids": NaN}\n{"input_ids": [1, 2, 3]}\n{"input_ids": [[1, 2, 3]]}\n{"length": true}\n')
    found = lengths.measure(data)
    assert (found.samples, found.not_understood, found.first_not_understood, found.longest) == (2, 3, 1, ((3, 2), (0, 0)))
    assert main(["lengths", str(data)]) == 0
    assert "3 rows (the first is row 1, counted from 0) were not understood" in " ".join(capsys.readouterr().out.split())


def test_parts_and_turns_of_a_conversation_are_text(tmp_path: Path) -> None:
    turns = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "a" * 40}]}, {"role": "assistant", "content": None}]
    pair = {"prompt": [{"role": "user", "content": "a" * 20}], "completion": [{"role": "assistant", "content": "b" * 19}]}
    (tmp_path / "a.json").write_text(json.dumps([{"messages": turns}, pair, {"length": 12.0}]))
    assert lengths.measure(tmp_path / "a.json").longest == ((12, 2), (11, 0), (10, 1))


@pytest.mark.parametrize("number", ["nan", "inf", "-1", "0"])
def test_characters_per_token_is_a_positive_number(number: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text("a row\n")
    assert main(["lengths", str(tmp_path / "a.txt"), "--characters-per-token", number]) == 2
    assert "a positive number of characters" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("d.jsonl", "would be lost"),
        ("job.yaml", "would be lost"),
        ("other.jsonl", "would be lost"),
        ("other.yaml", "would be lost"),
        ("other.json", "would be lost"),
        ("rr", "the name's ending says what is written"),
        ("folder/r.jsonl", "count as data"),
    ],
)
def test_a_rehearsal_costs_no_file(target: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    texts = {"d.jsonl": '{"text": "a"}\n', "folder/d.jsonl": '{"text": "a"}\n', "other.jsonl": '{"text": "b"}\n', "other.yaml": "a: 1\n", "other.json": "{}\n"}
    texts["job.yaml"] = (
        "version: 1\nmodel: {name: meta-llama/Llama-3.2-1B}\nmethod: {kind: lora}\nbatch: {micro_batch: 1, seq_len: 64}\nhardware: {gpu: a100-80gb}\n"
    )
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    data = "folder" if "/" in target else "d.jsonl"
    assert main(["lengths", data, "--job", "job.yaml", "--rehearsal", target]) == 2
    assert says in capsys.readouterr().err
    assert {name: (tmp_path / name).read_text() for name in texts} == texts
    for fresh in ("w.jsonl", "w.yaml", "w.json"):  # and what it wrote itself it writes again
        assert [main(["lengths", "d.jsonl", "--job", "job.yaml", "--rehearsal", fresh]) for _ in range(2)] == [0, 0]


def test_no_share_lies_above_the_longest(tmp_path: Path) -> None:
    """A bucket's bound is up to 3 % above what is in it; the longest sample is known."""
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(f'{{"length": {n}}}\n' for n in (12, 7500)))
    found = lengths.measure(file)
    assert found.quantile(0.99) == found.longest[0][0] == 7500
    assert found.quantile(0.5) == 12


def test_a_small_chance_is_not_said_to_be_none_and_what_was_written_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("d.jsonl").write_text("".join(json.dumps({"input_ids": [1] * (64 if row == 77 else 8)}) + "\n" for row in range(3000)))
    assert main(["lengths", "d.jsonl", "--fits", "32", "--steps", "2999", "--rehearsal", "r.jsonl"]) == 1
    said = capsys.readouterr().out
    assert "1 is longer than the 32 tokens that fit" in said and "by step 1: under 0.1 %" in said
    assert "by step 2,999: over 99.9 %" in said and "by step 10,000: 100.0 %" in said
    assert "Wrote r.jsonl: the longest row; train one step on it before the rest" in said


def written(path: Path, table: list[list[object]], separator: str = ",") -> Path:
    with path.open("w", encoding="utf-8", newline="") as handle:
        csv.writer(handle, delimiter=separator).writerows(table)
    return path


TURNS = json.dumps([{"role": "user", "content": "a" * 40}])


@pytest.mark.parametrize(
    ("name", "separator", "header", "row", "tokens"),
    [
        ("a.csv", ",", ["id", "text"], [7, "x, y\n" * 100], 125),
        ("a.csv", ",", ["prompt", "completion", "score"], ["a" * 20, '"b"\r\n' * 4, 0.25], 11),
        ("a.csv", ",", ["", "Review body", "stars"], [3, "c\n" * 20, 5], 10),
        ("a.csv", ",", ["text"], ["42"], 1),
        ("a.csv", ";", ["id", "text"], [7, "x, y\n" * 100], 125),
        ("a.tsv", "\t", ["text", "label"], ["x, y\n" * 100, 1], 125),
        ("a.csv", ",", ["id", "input_ids"], [7, "[1, 2, 3]"], 3),
        ("a.csv", ",", ["id", "num_tokens"], [7, 900], 900),
        ("a.csv", ",", ["id", "messages"], [7, TURNS], 10),
        ("a.csv", ",", None, ["It rained.\nAll day, they say.", "Did it?"], 10),
        ("a.csv", ",", None, ["It rained all day."], 5),
    ],
)
def test_a_row_of_a_table_is_a_sample(tmp_path: Path, name: str, separator: str, header: list[object] | None, row: list[object], tokens: int) -> None:
    found = lengths.measure(written(tmp_path / name, [*([header] if header else []), *[row] * 50], separator))
    assert (found.samples, found.not_understood, found.longest[0][0]) == (50, 0, tokens)


def test_a_table_in_a_folder_counts_and_its_rows_are_rehearsed(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    written(tmp_path / "d" / "a.csv", [["text"], ["short"], ["x\n" * 999]])
    assert main(["lengths", str(tmp_path / "d"), "--rehearsal", str(tmp_path / "r.jsonl")]) == 0
    assert [json.loads(line) for line in (tmp_path / "r.jsonl").read_text().splitlines()] == [{"text": "x\n" * 999}]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('text\none\n"two\nthree\nfour\n', "begins in line 3"),
        ("text,label\none,1\ntwo, or three,1\n", "line 3 ends a row of 3 cells"),
        ("text,label\n" + "x" * 5000 + ",1\n", "longer than"),
        ("text,label\n" + '"' + "x\n" * 3000 + '",1\n', "begins in line 2 is longer than"),
        ("text,label\n" + "x\n" * 100 + "y\0\n", "zero byte|binary"),
    ],
)
def test_a_table_that_is_none_says_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, says: str) -> None:
    monkeypatch.setattr(csv_rows, "MAX_LINE", 4096)
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(LengthsError, match=says):
        lengths.measure(tmp_path / "a.csv")
