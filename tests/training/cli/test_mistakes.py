"""A user's mistake on the command line ends with one line, exit code 2, and before any work."""

import importlib.metadata
import math
import os
import shutil

import pytest
from transformers import (
    AutoTokenizer,
    BartConfig,
    BartModel,
    BertConfig,
    BertModel,
    LlamaConfig,
    LlamaModel,
    PreTrainedTokenizerFast,
)

from csezoo.training.cli.parser import main
from tests.conftest import tiny_config, tiny_tokenizer
from tests.repositories import edit_json, tiny_repository

# What a configuration may not have, by the name of a directory with it.
CONFIGURATIONS = {
    "activation": {"hidden_act": "nonsense"},
    "kernels": {"hidden_act": "kernels-community/activation"},
    "zero": {"hidden_size": 0},
    "heads": {"num_attention_heads": 0},
    "negative": {"num_attention_heads": -2},
    "words": {"hidden_size": "large"},
    "vocabulary": {"vocab_size": 0},
    "types": {"model_type": ["bert"]},
    "nan": {"hidden_dropout_prob": math.nan},
    "labels": {"id2label": 5},
    "precision": {"dtype": "float99"},
    "padding": {"pad_token_id": 10**6},
}


@pytest.fixture(scope="module")
def broken(bases, tmp_path_factory):
    """A directory of models and files that each have one thing wrong, named after it."""
    tmp_path = tmp_path_factory.mktemp("broken")
    sizes = dict.fromkeys(["d_model", "encoder_ffn_dim", "decoder_ffn_dim"], 8)
    parts = dict.fromkeys(
        ["encoder_layers", "decoder_layers", "encoder_attention_heads", "decoder_attention_heads"], 1
    )
    BartModel(BartConfig(vocab_size=99, **sizes, **parts)).save_pretrained(tmp_path / "bart")
    AutoTokenizer.from_pretrained(bases["bert"]).save_pretrained(tmp_path / "bart")
    for name in ("listed", "misfit"):
        shutil.copytree(bases["bert"], tmp_path / name)
    (tmp_path / "listed" / "config.json").write_text("[]", encoding="utf-8")
    (tmp_path / "listed" / "fingerprint.json").write_text("[]", encoding="utf-8")
    edit_json(tmp_path / "misfit" / "config.json", intermediate_size=7)
    for name, changes in CONFIGURATIONS.items():
        copy = shutil.copytree(bases["bert"], tmp_path / name)
        edit_json(copy / "config.json", **changes)
    shutil.copytree(bases["bert"], tmp_path / "maskless")
    tokenizer = tiny_tokenizer("bert")
    special = {name: getattr(tokenizer, name) for name in ("cls_token", "sep_token", "pad_token", "unk_token")}
    maskless = PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer, **special)
    maskless.save_pretrained(tmp_path / "maskless")
    shutil.copytree(bases["bert"], tmp_path / "cut")
    (tmp_path / "cut" / "tokenizer.json").write_text('{"version": "1.0", "model": 5}', encoding="utf-8")
    model = BertModel(BertConfig(**{**tiny_config("bert").to_dict(), "vocab_size": 20}))
    model.save_pretrained(tmp_path / "few")
    AutoTokenizer.from_pretrained(bases["bert"]).save_pretrained(tmp_path / "few")
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    LlamaModel(LlamaConfig(vocab_size=300, **sizes)).save_pretrained(tmp_path / "decoder")
    AutoTokenizer.from_pretrained(bases["bert"]).save_pretrained(tmp_path / "decoder")
    (tmp_path / "sentences.txt").write_text("a cat\na dog\n", encoding="utf-8")
    (tmp_path / "pairs.csv").write_text("sentence1,sentence2,score\na,b,1\nc,d,2\n", encoding="utf-8")
    (tmp_path / "two.csv").write_text("a,b\nthe cat,the dog\n", encoding="utf-8")
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text("{}", encoding="utf-8")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.yaml").touch()
    (tmp_path / "picture.png").mkdir()
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "run_with_best" / "best").mkdir(parents=True)
    (tmp_path / "summary.json").write_text('{"model": "x", "summary": []}', encoding="utf-8")
    (tmp_path / "cards").mkdir()
    for name in ("README.md", "index.html"):
        (tmp_path / "cards" / name).write_text("my own page", encoding="utf-8")
    return tmp_path


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    return tiny_repository(tmp_path_factory.mktemp("repository") / "model")


EVALUATE = "--suite sts-dev --pooling"
QUOTED = "l2pcsr/table-1 --rows USE"  # a row that needs no run
TRANSLATE = "backtranslate {0}/sentences.txt --forward none --back none"  # models that are not loaded
TUNE = "tune diffcse-bert-base-uncased-sts --trials 1 --space"
PROMPTED = "promptbert-bert-base-uncased --eval_data none --report_to none --train_file {0}/sentences.txt --base_model"
TRAIN = "simcse-bert-base-uncased --eval_data none --report_to none --base_model"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("train", "give a recipe"),
        (f"train simcse-bert-base-uncased --base_model {'x' * 300}", "could not be loaded"),
        (f"evaluate {'x' * 300}", "is neither a directory with a model nor"),
        (f"verify {'x' * 300}", "is neither a directory nor a valid name on the Hub"),
        (f"train {TRAIN} BASE --train_file {{0}}/sentences.txt --max_length 1", "max_length: 1 must be at least 3"),
        (f"train {TRAIN} {{0}}/bart --train_file {{0}}/sentences.txt", "(bart) is not a single encoder or decoder"),
        (f"train {TRAIN} BASE --output_dir {{0}}/run", "recipe.yaml is not a recipe"),
        (f"train {TRAIN} no/such-model", "'no/such-model' could not be loaded"),
        (f"train {TRAIN} BASE --train_file {{0}}/sentences.txt --max_length 100", "max_length: 100 needs 100"),
        (f"train {TRAIN} BASE --train_file {{0}}/sentences.txt --dev_file missing.csv", "missing.csv does not exist"),
        (f"train {TRAIN} BASE --train_file {{0}}/sentences.txt --attn_implementation flash_attention_2", "be loaded"),
        (f"train {TRAIN} BASE --train_file {{0}}/sentences.txt --output_dir {{0}}/file", "cannot be written"),
        (f"train {TRAIN} BASE --train_file {{0}}/sentences.txt --report_to pigeon", "report_to"),
        ("train quickstart --num_workers 2 --streaming true --max_steps 1", "num_workers: one process reads a stream"),
        (
            f"evaluate BASE {EVALUATE} nonsense",
            "'nonsense' must be one of cls, mean, max, first_last_mean, embeddings_last_mean, last2_mean, last, wk",
        ),
        (f"evaluate {{0}}/decoder {EVALUATE} cls", "pooling: "),
        (f"evaluate BASE {EVALUATE} prompt", "'prompt' must be one of cls, mean"),
        (f"evaluate {{0}}/bart {EVALUATE} mean", "(bart) is not a single encoder or decoder"),
        (f"evaluate {{0}}/listed {EVALUATE} mean", "config.json: expected a JSON object, got list"),
        (f"evaluate {{0}}/misfit {EVALUATE} mean", "could not be loaded"),
        (f"evaluate BASE {EVALUATE} mean --out {{0}}", "is a directory; give a file"),
        (f"evaluate BASE {EVALUATE} mean --out {{0}}/file/x.json", "file is not a directory"),
        ("audit /", "/ has more than 10,000 files, so it is no repository; give one"),
        ("weakened {0}/run --sentences a \udcff --out {0}/w.png", "is not UTF-8; rename the file, or correct the"),
        ("weakened {0}/run --sentences a b --out w.jpg", "w.jpg is not a PNG file"),
        ("portrait nowhere --of pairs --out p.pdf", "out: p.pdf is not a PNG file"),
        ("evaluate BASE --suite retrieval --queries \udcff", "is not UTF-8; rename the file, or correct the text"),
        ("table {0}", "error: "),
        ("verify {0}/listed", "fingerprint.json: expected a JSON object, got list"),
        ("", "the following arguments are required: COMMAND; see csezoo --help"),
        ("evaluate", "the following arguments are required: MODEL; see csezoo evaluate --help"),
        ("nonsense", "invalid choice: 'nonsense'"),
        ("evaluate BASE --nonsense", "unrecognized arguments: --nonsense"),
        (f"train {'x' * 300}.yaml", "is too long for the name of a file; give a shorter one"),
        (f"train {TRAIN} BASE --train_file {'x' * 300}.txt", "is too long for the name of a file"),
        (
            f"train {TRAIN} BASE --train_file {{0}}/sentences.txt --dev_file {'x' * 300}",
            "is too long for the name of a file",
        ),
        (
            f"train {TRAIN} BASE --train_file {{0}}/sentences.txt --output_dir {'x' * 300}",
            "is too long for the name of a file",
        ),
        (f"evaluate BASE {EVALUATE} cls --out {'x' * 300}", "is too long for the name of a file"),
        (f"encode BASE {{0}}/sentences.txt --pooling cls --to {'x' * 300}", "oo long"),
        (f"cards --out {'x' * 300}", "is too long for the name of a file"),
        (f"export BASE --onnx --to {'x' * 300}", "is too long for the name of a file"),
        (f"publish {'x' * 300} --to a/b", "is too long for the name of a file"),
        (f"encode BASE {{0}}/sentences.txt --pooling cls --to {{0}}/e --shard_size {10**30}", "shard_size: 10000"),
        (f"weakened {{0}}/run --sentences a b --out {{0}}/w.png --seed {10**30}", "must be at least 0 and at most"),
        (f"train {TRAIN} BASE --method simcse+simcse", "method: 'simcse' is given twice; give it once"),
        (f"train {TRAIN} BASE --text_columns a a --train_file {{0}}/pairs.csv", "text_columns: a is given twice"),
        (f"train {PROMPTED} BASE --prompts {{{{mask}}}}", "must contain {sentence} and {mask} once each"),
        (f"train {PROMPTED} BASE --prompts {{{{sentence}}}}", "must contain {sentence} and {mask} once each"),
        (f"train {PROMPTED} BASE --prompts {{{{sentence}}}}{{{{mask}}}}{{{{mask}}}}", "and {mask} once each"),
        (f"train {PROMPTED} BASE --prompts {{{{sentence}}}}{{{{sentence}}}}{{{{mask}}}}", "and {mask} once each"),
        (f"train {PROMPTED} {{0}}/maskless", "prompts: the tokenizer of"),
        (
            f"train {TRAIN} {{0}}/maskless --train_file {{0}}/sentences.txt --mlm_weight 0.1",
            "mlm_weight: the tokenizer of",
        ),
        (f"train {TRAIN} {{0}}/cut --train_file {{0}}/sentences.txt", "cut: its tokenizer could not be loaded"),
        (f"train {TRAIN} {{0}}/few --train_file {{0}}/sentences.txt", "but the model has only 20 embeddings"),
        ("evaluate {0}/few --pooling cls --pairs {0}/pairs.csv", "but the model has only 20 embeddings"),
        ("portrait BASE --of pairs --pooling cls --out {0}/picture.png", "is a directory; give a file"),
        ("glue BASE --tasks RTE --seeds 1 -1", "seeds: -1 must be at least 0 and below 2**32"),
        ("glue BASE --tasks RTE --epochs nan", "epochs: nan must be above 0"),
        ("glue BASE --tasks RTE --max_length 2", "max_length: 2 leaves no room for two texts"),
        ("benchmark soak quickstart --picture {0}/x.txt", "x.txt is not a PNG file"),
        ("benchmark soak quickstart --every -1", "every: -1.0 must be above 0"),
        ("benchmark memory quickstart --steps 0", "steps: 0 must be at least 1"),
        ("benchmark start quickstart --lines 10000", "lines: 10000 must be more than 10,000"),
        ("benchmark scaling quickstart --axes steps", "axes: 'steps' must be one of batch_size, max_length"),
        ("benchmark short --models runs/a/best --data none", "'runs/a/best' is not LABEL=MODEL; give a label, such"),
        ("convert BASE --as base --serving sts --to base", "--serving: a pre-trained model is not served"),
        ("recipes --batch_size 8", "unrecognized arguments: --batch_size 8"),
        ("models --cards missing", "missing/results.csv cannot be read"),
        ("models --method weather", "no model fits"),
        ("compare a b --passages p.txt", "--passages: they are searched for the passages of --queries"),
        ("compare a b --sentences s.txt --pairs p.csv", "--sentences: labels are the better judge"),
        ("compare a b --queries none.csv", "none.csv does not exist; give a CSV file with the columns query and"),
        ("cards --out cards --docs docs", "give --html too"),
        ("cards --out cards --docs nowhere --html site", "nowhere/README.md is missing"),
        (f"{TRANSLATE} --to x.csv --batch_size 0", "batch_size: 0 must be at least 1"),
        (f"{TRANSLATE} --to x.csv --beams 0", "beams: 0 must be at least 1"),
        (f"{TRANSLATE} --to x.csv --beams {'9' * 20}", f"beams: {'9' * 20} must be at least 1 and at most 10,000"),
        (f"{TRANSLATE} --to nowhere/x.csv", "nowhere is not a directory"),
        ("benchmark scaling quickstart --repeats 0", "repeats: 0 must be at least 1"),
        ("benchmark training quickstart --out {0}", "is a directory; give a file"),
        ("portrait BASE --of pairs --pooling cls --out {0}/pipe.png", "pipe.png is not a regular file"),
        (f"evaluate BASE {EVALUATE} cls --name me/model", "of --format mteb; give that too"),
        (f"reproduce {QUOTED} --out {{0}}/file", "file cannot be written"),
        (f"reproduce {QUOTED} --sbatch=--qos=low", "give --on slurm too"),
        (f"{TUNE} diffcse/appendix-a --out {{0}}/file/x", "x cannot be written"),
        ("reproduce --rows x --dry-run", "give a table or figure"),
        ("reproduce --rows a", "give a table or figure"),
        ("reproduce l2pcsr/table-1 --launch='x", "--launch: 'x is not a list of options (No closing quotation)"),
        ("evaluate {0}/adapter", "adapter --to DIR` makes the model"),
        ("verify {0}/adapter", "is an adapter; `csezoo merge"),
        ("audit {0}/run_with_best", "run_with_best is a run; give"),
        ("export {0}/adapter --to {0}/none --onnx", "is an adapter; `csezoo merge"),
        ("compare a b --pairs p.csv --data SentEval", "--data: only suites read it"),
        (f"{TUNE} diffcse/appendix-a --set seeds=7", "set: give --seeds instead of seeds"),
        (f"{TUNE} diffcse/appendix-a --seeds 43 43", "must be one or more different numbers"),
        (f"{TUNE} diffcse/appendix-a --trial-seed 2147483647", "seeds: 2147483648 must be"),
        ("synonyms {0}/two.csv --thesaurus {0}/two.csv --to {0}/new.csv", "give the ones with sentences as --column"),
        (
            "synonyms stsb-sentences --column a --thesaurus {0}/two.csv --to {0}/new.csv",
            "column: stsb-sentences has no",
        ),
        (
            "synonyms {0}/sentences.txt --data a --thesaurus {0}/two.csv --to {0}/new.csv",
            "data: it is for stsb-sentences",
        ),
        ("synonyms {0}/sentences.txt --thesaurus {0}/file --to {0}/none/x.csv", "error: to: "),
        ("benchmark short --models a=BASE --picture {0}/x.jpg", "error: picture: "),
        ("benchmark soak quickstart --lines 0", "lines: 0 must be at least 1"),
        ("verify {0}/run_with_best", "run_with_best is a run; give"),
        ("evaluate {0}/run_with_best --suite sts-dev", "run_with_best is a run; give"),
        (f"train {TRAIN} {{0}}/run_with_best --train_file {{0}}/sentences.txt", "run_with_best is a run; give"),
        (f"train {TRAIN} no/such-model --train_file missing.txt", "train_file: missing.txt does not exist"),
        (f"train {TRAIN} no/such-model --nli_file missing.csv --nli_steps 1", "nli_file: missing.csv does not exist"),
        ("table {0}/summary.json", "summary.json is not a results file"),
        ("cards --out {0}/cards", "README.md was not written by csezoo and would be replaced"),
        ("cards --out {0}/cards/new --html {0}/cards", "index.html was not written by csezoo and would be replaced"),
        (f"{TUNE} nowhere --sbatch=--qos=low", "give --on slurm too"),
        (f"{TUNE} nowhere --sentences {{0}}/sentences.txt", "give --objective unlabelled too"),
        (f"{TUNE} nowhere --objective unlabelled --sentences {{0}}/sentences.txt --set dev_file=x.csv", "no dev_file"),
    ],
)
def test_a_mistake_is_one_line_with_the_way_out(command, message, bases, broken, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a run without --output_dir begins here
    words = [str(bases["bert"]) if word == "BASE" else word.format(broken) for word in command.split()]
    with pytest.raises(SystemExit) as stop:
        main(words)
    *before, line = capsys.readouterr().err.splitlines()
    assert stop.value.code == 2 and (not before or words[0] == "train")  # train logs its progress first
    assert line.startswith("error: ") and message in line


def on_one_line(capsys, *words) -> str:
    """Run a command that fails, and return what the user reads."""
    with pytest.raises(SystemExit) as stop:
        main([*map(str, words)])
    *_, line = capsys.readouterr().err.splitlines()
    assert stop.value.code == 2 and line.startswith("error: ")
    return line


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_broken_configuration_is_one_line_wherever_it_is_read(
    name, broken, repository, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    pairs, sentences = broken / "pairs.csv", broken / "sentences.txt"
    assert name in on_one_line(capsys, "evaluate", broken / name, "--pooling", "cls", "--pairs", pairs)
    assert name in on_one_line(capsys, "train", *TRAIN.split(), broken / name, "--train_file", sentences)
    shutil.copytree(repository, tmp_path / name)
    edit_json(tmp_path / name / "config.json", **CONFIGURATIONS[name])
    assert name in on_one_line(capsys, "verify", tmp_path / name)
    assert name in on_one_line(capsys, "evaluate", tmp_path / name, "--pairs", pairs)


@pytest.mark.parametrize("content", ["", "null", "[]", "5", '{"a": 1}', '{"model": "x", "resul', "[" * 10_000])
@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json", "fingerprint.json"])
def test_a_file_of_a_checkpoint_with_other_content_is_one_line(name, content, repository, tmp_path, capsys):
    shutil.copytree(repository, tmp_path / "model")
    (tmp_path / "model" / name).write_text(content, encoding="utf-8")
    assert "model" in on_one_line(capsys, "verify", tmp_path / "model")
    if name == "fingerprint.json":
        assert name in on_one_line(capsys, "publish", tmp_path / "model", "--to", "a/b")
    elif (name, content) != ("tokenizer_config.json", "{}"):
        pairs = tmp_path / "pairs.csv"
        pairs.write_text("sentence1,sentence2,score\na,b,1\nc,d,2\n", encoding="utf-8")
        assert "model" in on_one_line(capsys, "evaluate", tmp_path / "model", "--pairs", pairs)


@pytest.mark.parametrize("content", ["", "null", "{}", "[5]", "[{}]", '[{"path": 5}]', "[" * 10_000])
def test_a_broken_list_of_modules_is_one_line(content, tmp_path, capsys):
    (tmp_path / "modules.json").write_text(content, encoding="utf-8")
    assert "modules.json" in on_one_line(capsys, "evaluate", tmp_path, "--suite", "sts-dev")


def test_a_card_that_is_not_text_is_one_line(repository, tmp_path, capsys):
    shutil.copytree(repository, tmp_path / "model")
    (tmp_path / "model" / "README.md").write_bytes(b"\xff\xfe")
    assert "README.md cannot be read" in on_one_line(capsys, "publish", tmp_path / "model", "--to", "a/b")
    assert "README.md cannot be read" in on_one_line(
        capsys, "export", tmp_path / "model", "--onnx", "--to", tmp_path / "plain"
    )


def test_a_line_break_in_a_name_does_not_break_the_line(tmp_path, capsys):
    (tmp_path / "pairs.csv").write_text('"a\nb",c\nx,y\n', encoding="utf-8")
    words = [*TRAIN.split(), tmp_path, "--train_file", tmp_path / "pairs.csv", "--output_dir", "a\nb" * 99]
    assert "too long" in on_one_line(capsys, "train", *words)


def test_the_version_is_one_line(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"csezoo {importlib.metadata.version('csezoo')}\n"


def test_a_directory_that_cannot_be_written_is_refused_before_the_work(bases, capsys):
    if not os.path.isdir("/proc"):
        pytest.skip("needs a directory that nobody can write to")
    line = on_one_line(capsys, "evaluate", bases["bert"], "--pooling", "cls", "--out", "/proc/result.json")
    assert line.startswith("error: out: /proc/result.json cannot be written")
    for command in (f"reproduce {QUOTED}", f"{TUNE} diffcse/appendix-a"):
        assert "--out: /proc cannot be written" in on_one_line(capsys, *command.split(), "--out", "/proc")


@pytest.mark.parametrize(
    "command",
    [
        "evaluate {0} --pairs {1} --out=",
        "evaluate {0} --pairs=",
        "evaluate {0} --pairs {1} --data=",
        "encode {0} {1} --to=",
        "encode {0} {1} --to x --column=",
        "train simcse-bert-base-uncased --train_file {1} --output_dir=",
        "train simcse-bert-base-uncased --train_file {1} --base_model=",
        "reproduce diffcse/table-3 --set base_model= --dry-run",
        "export {0} --to= --onnx",
        "cards --out=",
        "benchmark training quickstart --out=",
    ],
)
def test_an_empty_value_is_refused(command, broken, tmp_path, capsys, monkeypatch):
    """It is no path: `--out=` would write nothing, `--to=` into the working directory."""
    monkeypatch.chdir(tmp_path)
    words = command.format(broken / "few", broken / "pairs.csv").split()
    assert ": the value is empty; give one, or leave the " in on_one_line(capsys, *words)
    assert list(tmp_path.iterdir()) == []


def test_the_help_of_a_recipe_without_keys_is_shown(tmp_path, capsys):
    (tmp_path / "null.yaml").write_text("null\n", encoding="utf-8")
    main(["train", str(tmp_path / "null.yaml"), "--help"])
    assert "Values of null:" in capsys.readouterr().out
