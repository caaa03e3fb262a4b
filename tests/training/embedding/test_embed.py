"""`csezoo encode` writes embeddings in the order of the file, in complete shards, the same after any interruption."""

import gzip
import json
import signal
import subprocess
import sys

import datasets
import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import quantization as theirs

from csezoo.modeling.contrastive.published import load_published
from csezoo.modeling.serving.quantization_csezoo import PRECISIONS
from csezoo.training.cli.parser import main
from csezoo.training.embedding.embed import embed_file
from csezoo.training.embedding.shards import finished_shards, read_receipt
from csezoo.training.errors import UserError
from csezoo.training.evaluation.encoders import load_encoder
from tests.conftest import SENTENCES
from tests.interpreters import CONTEXT, run_two
from tests.repositories import tiny_repository
from tests.training.faults import KilledAtFile

TEXTS = ["the cat", "", *SENTENCES[:20], " ".join(SENTENCES[:6]), "zebra, 🙂"]
RECEIPT = {"model_sha256": "0" * 64, "pooling": "letters", "dtype": "float32"}


def letters(texts):
    """A toy encoder that counts letters."""
    return np.array([[text.count(letter) for letter in "abcdefg"] for text in texts], np.float32)


def contents(directory) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_repository(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    return path


def test_parquet_contains_row_text_and_embedding_in_file_order(model, file, tmp_path, capsys):
    out = tmp_path / "out"
    main(["encode", str(model), str(file), "--to", str(out), "--shard_size", "10"])
    assert capsys.readouterr().out == f"{out}: 24 embeddings in 3 files\n"
    assert sorted(contents(out)) == [f"part-0000{number}-of-00003.parquet" for number in range(3)]
    frame = pd.read_parquet(out)
    assert frame.row.tolist() == list(range(24)) and frame.text.tolist() == TEXTS
    expected = load_published(model).encode(TEXTS)
    np.testing.assert_allclose(np.stack(frame.embedding), expected, atol=1e-6)
    loaded = datasets.load_dataset("parquet", data_dir=str(out), split="train", cache_dir=str(tmp_path / "cache"))
    assert loaded["text"][:] == TEXTS and loaded.features["embedding"].length == 32
    receipt = read_receipt(out / "part-00000-of-00003.parquet")
    assert receipt["model_sha256"] == load_encoder(str(model))[1]["model_sha256"] and receipt["pooling"] == "cls"


def test_safetensors_contains_row_and_embedding(model, file, tmp_path):
    out = tmp_path / "out"
    options = ["--format", "safetensors", "--normalize", "--shard_size", "20", "--dtype", "bfloat16"]
    main(["encode", str(model), str(file), "--to", str(out), *options])
    shards = [load_file(path) for path in sorted(out.iterdir())]
    assert np.concatenate([shard["row"] for shard in shards]).tolist() == list(range(24))
    written = np.concatenate([shard["embedding"] for shard in shards])
    assert written.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(written, axis=1), 1, atol=1e-6)
    expected = load_published(model).encode(TEXTS, normalize_embeddings=True)
    np.testing.assert_allclose(written, expected, atol=0.05)


def test_a_plain_encoder_and_a_sentence_transformers_model_agree(bases, file, tmp_path):
    main(["encode", str(bases["bert"]), str(file), "--to", str(tmp_path / "plain"), "--pooling", "mean"])
    SentenceTransformer(str(bases["bert"])).save(str(tmp_path / "model"))
    main(["encode", str(tmp_path / "model"), str(file), "--to", str(tmp_path / "theirs")])
    ours, theirs = (np.stack(pd.read_parquet(tmp_path / name).embedding) for name in ("plain", "theirs"))
    np.testing.assert_allclose(ours, theirs, atol=1e-6)


@pytest.mark.parametrize("suffix", [".txt", ".csv", ".tsv", ".jsonl", ".parquet", ".txt.gz", ".csv.gz"])
def test_every_file_format_yields_the_same_shards(suffix, tmp_path):
    frame, path = pd.DataFrame({"id": range(len(TEXTS)), "text": TEXTS}), tmp_path / f"texts{suffix}"
    if suffix == ".parquet":
        frame.to_parquet(path)
    else:
        content = {
            ".txt": "\n".join(TEXTS) + "\n",
            ".csv": frame.to_csv(index=False),
            ".tsv": frame.to_csv(index=False, sep="\t"),
            ".jsonl": frame.to_json(orient="records", lines=True),
        }[f".{suffix.split('.')[1]}"].encode()
        path.write_bytes(gzip.compress(content) if suffix.endswith(".gz") else content)
    assert embed_file(letters, RECEIPT, str(path), tmp_path / "out", shard_size=7) == (24, 4)
    frame = pd.read_parquet(tmp_path / "out")
    assert frame.text.tolist() == TEXTS
    np.testing.assert_array_equal(np.stack(frame.embedding), letters(TEXTS))


@pytest.mark.parametrize(
    ("name", "content", "options", "line"),
    [
        ("a.txt", b"one\ntwo\nthr\xffee\n", {}, "a.txt, line 3: not UTF-8"),
        ("a.txt.gz", gzip.compress(b"one\nt\xffo\n", mtime=0), {}, "a.txt.gz, line 2: not UTF-8"),
        ("a.txt.gz", gzip.compress(b"one\ntwo\n" * 99, mtime=0)[:-20], {}, "a.txt.gz could not be read"),
        ("a.csv", b"id,text\n1,a\n2,b,c\n", {}, "line 3"),
        ("a.csv", b"id,text\n1,a\n", {"column": "name"}, "has no column name, only id, text; give existing columns"),
        ("a.csv", b"id,name\n1,a\n", {}, "has the columns id, name; give the ones with sentences as --column"),
        ("a.jsonl", b'{"text": "a"}\n{"text": null}\n', {}, "a.jsonl, row 2: column text must be text, got None"),
        ("a.jsonl", b'{"text": "a"}\n{"text": \n', {}, "a.jsonl could not be read"),
        ("a.txt", b"", {}, "a.txt is empty"),
        ("a.txt.gz", gzip.compress(b"", mtime=0), {}, "a.txt.gz has no sentences"),
        ("a.csv", b"id,text\n", {}, "a.csv contains no texts"),
        ("a.doc", b"one\n", {}, "must end in one of .txt, .csv"),
    ],
)
def test_an_unreadable_row_is_reported_before_anything_is_written(tmp_path, name, content, options, line):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError) as error:
        embed_file(letters, RECEIPT, str(tmp_path / name), tmp_path / "out", **options)
    assert line in str(error.value) and "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("receipt", "options", "line"),
    [
        ({"model_sha256": "1" * 64}, {}, f"contains embeddings made with another model ({'0' * 64}); choose another"),
        ({"pooling": "words"}, {}, "contains embeddings made with another pooling (letters)"),
        ({}, {"normalize": True}, "contains embeddings made with another normalize (False)"),
        ({}, {"shard_size": 20}, "contains embeddings made with another shard_size (10)"),
        ({}, {"file_format": "safetensors"}, "contains embeddings made with another format (parquet)"),
    ],
)
def test_a_directory_with_other_embeddings_is_refused_and_left_unchanged(file, tmp_path, receipt, options, line):
    out = tmp_path / "out"
    embed_file(letters, RECEIPT, str(file), out, shard_size=10)
    before = contents(out)
    with pytest.raises(UserError) as error:
        embed_file(letters, RECEIPT | receipt, str(file), out, **{"shard_size": 10, **options})
    assert line in str(error.value) and contents(out) == before


def test_a_changed_file_is_refused_and_a_moved_or_compressed_one_is_not(file, tmp_path):
    out = tmp_path / "out"
    embed_file(letters, RECEIPT, str(file), out)
    (tmp_path / "texts.txt.gz").write_bytes(gzip.compress(file.read_bytes()))
    embed_file(letters, RECEIPT, str(tmp_path / "texts.txt.gz"), out)
    file.write_text("another text\n", encoding="utf-8")
    with pytest.raises(UserError, match="another text"):
        embed_file(letters, RECEIPT, str(file), out)


@pytest.mark.parametrize("name", ["table.parquet", "weights.safetensors"])
def test_a_directory_with_foreign_files_is_refused(file, tmp_path, name):
    out = tmp_path / "out"
    out.mkdir()
    (out / name).write_bytes(b"not a shard")
    with pytest.raises(UserError, match=f"{name} was not written by `csezoo encode`"):
        embed_file(letters, RECEIPT, str(file), out)
    with pytest.raises(UserError, match="cannot be written"):
        embed_file(letters, RECEIPT, str(file), file)


def _encode_killed(command, out, change) -> None:
    KilledAtFile(out, change).install()
    main([*command, str(out)])


def test_after_a_kill_the_same_command_writes_only_the_missing_shards(model, tmp_path):
    file, out = tmp_path / "texts.txt", tmp_path / "out"
    file.write_text("\n".join(SENTENCES) + "\n", encoding="utf-8")
    command = ["encode", str(model), str(file), "--shard_size", "10", "--to"]
    process = CONTEXT.Process(target=_encode_killed, args=(command, out, 16))
    process.start()
    process.join(timeout=120)
    assert process.exitcode == -signal.SIGKILL
    complete = {path.name: path.stat().st_mtime_ns for path in out.glob("part-*")}
    assert 1 < len(complete) < 19
    (out / ".part-00018-of-00020.parquet.1.partial").write_bytes(b"half of a sh")
    assert len(pd.read_parquet(out)) == 10 * len(complete), "readers skip unfinished shards"
    main([*command, str(out)])
    assert {name: (out / name).stat().st_mtime_ns for name in complete} == complete, (
        "finished shards are not rewritten"
    )
    main([*command, str(tmp_path / "at-once")])
    assert contents(out) == contents(tmp_path / "at-once")


@pytest.mark.slow
def test_two_processes_write_the_same_files_as_one(model, file, tmp_path):
    command = ["encode", str(model), str(file), "--shard_size", "7", "--to"]
    out, _ = run_two("-m", "csezoo.training.cli", *command, tmp_path / "two")
    assert out.count("24 embeddings in 4 files") == 1
    main([*command, str(tmp_path / "one")])
    assert contents(tmp_path / "two") == contents(tmp_path / "one")


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file(tmp_path):
    """The second file has 40,000 more lines; their vectors take 80 MiB."""
    code = """
import json, resource, sys
from pathlib import Path
import numpy as np
from csezoo.training.embedding.embed import embed_file
receipt = {"model_sha256": "", "pooling": "", "dtype": "float32"}
peaks = []
for lines in (20_000, 60_000):
    file = Path(sys.argv[1], f"{lines}.txt")
    file.write_text("".join(f"the cat sees {line} houses\\n" for line in range(lines)), encoding="utf-8")
    encode = lambda texts: np.ones((len(texts), 512), np.float32)
    embed_file(encode, receipt, str(file), file.with_suffix(""), shard_size=2000)
    peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
print(json.dumps(peaks))
"""
    command = [sys.executable, "-W", "ignore", "-c", code, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    fewer, more = json.loads(done.stdout.splitlines()[-1])
    assert more - fewer < 30, f"{fewer:.0f} MiB, then {more:.0f} MiB"


@pytest.mark.parametrize("precision", PRECISIONS)
def test_vectors_are_truncated_normalised_and_quantised_with_the_ranges_of_the_first_shard(
    precision, model, file, tmp_path
):
    out = tmp_path / "out"
    options = ["--truncate_dim", "20", "--normalize", "--precision", precision, "--shard_size", "10"]
    main(["encode", str(model), str(file), "--to", str(out), *options])
    vectors = load_published(model).encode(TEXTS, truncate_dim=20, normalize_embeddings=True)
    expected = theirs.quantize_embeddings(vectors, precision, calibration_embeddings=vectors[:10])
    written = np.stack(pd.read_parquet(out).embedding)
    assert written.dtype == expected.dtype and written.shape == expected.shape
    if precision == "float32":
        np.testing.assert_allclose(written, expected, atol=1e-6)
    else:  # a value at the end of a step may fall on either side of it
        assert (written != expected).mean() < 0.01
    for shard in sorted(out.iterdir()):
        receipt = read_receipt(shard)
        assert ("ranges" in receipt) == ("int8" in precision) and receipt["truncate_dim"] == 20
        if "int8" in precision:  # queries are quantised with the same ranges
            np.testing.assert_allclose(receipt["ranges"], [vectors[:10].min(0), vectors[:10].max(0)], atol=1e-6)


def test_an_interrupted_call_has_the_ranges_of_an_uninterrupted_one(file, tmp_path):
    for name in ("one", "two"):
        embed_file(letters, RECEIPT, str(file), tmp_path / name, precision="int8", shard_size=10)
    before = contents(tmp_path / "one")
    (tmp_path / "two" / "part-00001-of-00003.parquet").unlink()
    embed_file(letters, RECEIPT, str(file), tmp_path / "two", precision="int8", shard_size=10)
    assert contents(tmp_path / "two") == before
    with pytest.raises(UserError, match=r"made with another precision \(int8\); choose another --to"):
        embed_file(letters, RECEIPT, str(file), tmp_path / "two", shard_size=10)


@pytest.mark.parametrize("lost", ["part-00000-of-00003.parquet", "part-00001-of-00003.parquet"])
def test_a_later_call_quantises_with_the_ranges_of_the_shards_that_are_there(file, tmp_path, lost):
    """With another batch size, for example, the vectors differ a little, and so would the ranges."""
    embed_file(letters, RECEIPT, str(file), tmp_path / "out", precision="int8", shard_size=10)
    shard = tmp_path / "out" / lost
    first = read_receipt(shard)["ranges"]
    shard.unlink()
    encoded = []

    def slightly_different(texts):
        encoded.append(len(texts))
        return letters(texts) * 1.001

    embed_file(slightly_different, RECEIPT, str(file), tmp_path / "out", precision="int8", shard_size=10)
    assert [read_receipt(path)["ranges"] for path in sorted((tmp_path / "out").iterdir())] == [first] * 3
    assert encoded == [10], "nothing but the lost shard is encoded"


def test_what_cannot_be_truncated_or_quantised_is_refused(model, file, tmp_path):
    with pytest.raises(UserError, match="precision: one text has no range"):
        embed_file(letters, RECEIPT, str(file), tmp_path / "out", precision="int8", shard_size=1)
    with pytest.raises(SystemExit):
        main(["encode", str(model), str(file), "--to", str(tmp_path / "out"), "--truncate_dim", "0"])
    with pytest.raises(UserError, match="truncate_dim: 8 must be at most 7, the dimensions of the model"):
        embed_file(letters, RECEIPT, str(file), tmp_path / "out", truncate_dim=8)


@pytest.mark.parametrize("change", ["other texts", "fewer texts", "more texts"])
def test_a_file_that_changes_meanwhile_is_refused(tmp_path, change):
    """A shard of new texts would have the checksum of the old ones. The file is read in parts of 10 MB."""
    rows, line = 24_000, b"a" * 499 + b"\n"
    file = tmp_path / "texts.txt"
    file.write_bytes(line * rows)

    def changing(texts):
        with file.open("r+b") as opened:
            length = opened.seek(0, 2)
            if change == "fewer texts":
                opened.truncate(len(line) * (rows - 1000))
            elif length == len(line) * rows:
                opened.seek(length if change == "more texts" else length - 500_000)
                opened.write(b"b" * 499 + b"\n")
        return letters(texts)

    with pytest.raises(UserError, match=r"texts\.txt changed while it was embedded; start again"):
        embed_file(changing, RECEIPT, str(file), tmp_path / "out", shard_size=1000)


@pytest.fixture(params=["parquet", "safetensors"])
def embedded(request, file, tmp_path):
    """What embeds a file in shards of ten rows, the directory with its shards, their contents, and the second one."""

    def embed(encode=letters):
        embed_file(encode, RECEIPT, str(file), tmp_path / "out", shard_size=10, file_format=request.param)

    embed()
    return embed, tmp_path / "out", contents(tmp_path / "out"), sorted((tmp_path / "out").iterdir())[1]


def test_a_shard_that_was_cut_is_written_again(embedded):
    embed, out, written, second = embedded
    second.write_bytes(written[second.name][:100])
    finished = finished_shards(out, read_receipt(min(set(out.iterdir()) - {second})), sorted(written))
    assert finished == written.keys() - {second.name}, "another process does not read its ranges from it"
    embed()
    assert contents(out) == written


def test_a_file_of_a_user_with_the_name_of_a_shard_is_refused(embedded):
    embed, _, _, second = embedded
    if second.suffix == ".parquet":
        pd.DataFrame({"text": ["mine"]}).to_parquet(second)
    else:
        save_file({"mine": np.zeros(1)}, second)
    with pytest.raises(UserError, match="was not written by `csezoo encode`"):
        embed()


def test_a_shard_with_changed_bytes_is_written_again(embedded):
    embed, out, written, second = embedded
    vectors = letters(TEXTS[10:20]).tobytes()
    place = written[second.name].index(vectors) + len(vectors) // 2
    second.write_bytes(written[second.name][:place] + b"\x01" + written[second.name][place + 1 :])
    calls = []
    embed(lambda texts: calls.append(texts) or letters(texts))
    assert contents(out) == written and calls == [TEXTS[10:20]]
