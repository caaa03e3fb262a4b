"""Tiny real models and files for all tests; nothing is downloaded."""

import gc
import json
import os
import shutil
import socket
from collections import Counter
from pathlib import Path

# Set before any library reads them: no test may reach the network.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["OMP_NUM_THREADS"] = "1"  # tests run in parallel, with small models
# Processes of one test find each other whatever this machine's name and network are.
os.environ["GLOO_SOCKET_IFNAME"] = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))

import pytest
import torch
from accelerate.state import AcceleratorState
from tokenizers import ByteLevelBPETokenizer
from transformers import (
    AutoModel,
    BertConfig,
    BertForMaskedLM,
    BertTokenizer,
    RobertaConfig,
    RobertaForMaskedLM,
    RobertaTokenizer,
)

MEMORY = Path("/dev/shm")  # on Linux, a file system in memory

SENTENCES = [
    f"the {adjective} {animal} {verb} the {thing} ."
    for adjective in ("small", "old", "quick", "lazy")
    for animal in ("cat", "dog", "horse", "bird")
    for verb in ("sees", "likes", "finds", "wants")
    for thing in ("house", "river", "tree")
]
WORDS = ["this", "sentence", "of", "means", "the", ":", '"', "'", ".", "!"]
WORDS += sorted({word for sentence in SENTENCES for word in sentence.split()} - set(WORDS))


NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def tiny_config(kind: str, **changes):
    """A three-layer BERT or RoBERTa configuration of width 32."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 64}
    sizes |= {"vocab_size": 300, "max_position_embeddings": 66, **changes}
    return {"bert": BertConfig, "roberta": RobertaConfig}[kind](**sizes)


def tiny_tokenizer(kind: str):
    """A tokenizer of the backbone's class with the words of `SENTENCES`."""
    if kind == "bert":
        tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
        return BertTokenizer(vocab={token: number for number, token in enumerate(tokens)}, do_lower_case=True)
    trained = ByteLevelBPETokenizer()
    trained.train_from_iterator(
        SENTENCES, vocab_size=295, special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"], show_progress=False
    )
    state = json.loads(trained._tokenizer.to_str())["model"]
    return RobertaTokenizer(vocab=state["vocab"], merges=[tuple(merge) for merge in state["merges"]])


def pytest_configure(config):
    """Keep temporary files in memory: a run waits for the disk after each file that a crash must not lose.

    The slow tests install packages, which need too much memory.
    """
    if config.option.markexpr == "not slow" and MEMORY.is_dir() and os.access(MEMORY, os.W_OK):
        if shutil.disk_usage(MEMORY).free > 4 * 2**30:
            os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Run more workers than cores: a third of the time, a test waits for a package, a server or another process."""
    return (os.cpu_count() or 1) * 3 // 2


@pytest.hookimpl(trylast=True)  # the tests that run are chosen
def pytest_collection_modifyitems(items):
    """Start the files that take longest first, so that no worker has one of them left at the end."""
    limits: Counter[Path] = Counter()
    for item in items:
        limit = item.get_closest_marker("timeout")
        limits[item.path] += limit.args[0] if limit else 1
    items.sort(key=lambda item: (-limits[item.path], item.path))


def pytest_collection_finish():
    """Leave the tests and the libraries out of garbage collection: accelerate collects twice in each run."""
    gc.freeze()


@pytest.fixture(scope="session", params=["bert", "roberta"])
def kind(request) -> str:
    """Each backbone family in turn."""
    return request.param


def save_base(kind: str, directory: Path) -> Path:
    """Save a tiny pre-trained masked language model with its tokenizer."""
    torch.manual_seed(0)
    {"bert": BertForMaskedLM, "roberta": RobertaForMaskedLM}[kind](tiny_config(kind)).save_pretrained(directory)
    tiny_tokenizer(kind).save_pretrained(directory)
    return directory


def write_pairs(path: Path) -> Path:
    """Write pairs scored by the words they share."""
    lines = ["sentence1,sentence2,score"]
    for number, first in enumerate(SENTENCES[::2]):
        second = SENTENCES[(number * 37 + 5) % len(SENTENCES)]
        lines.append(f"{first},{second},{len(set(first.split()) & set(second.split())) - 1}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def bases(tmp_path_factory) -> dict[str, Path]:
    """Directories of tiny pre-trained masked language models with their tokenizers, by family."""
    return {kind: save_base(kind, tmp_path_factory.mktemp("base") / kind) for kind in ("bert", "roberta")}


@pytest.fixture(scope="session")
def named_models(bases, tmp_path_factory) -> Path:
    """A directory in which the names of models that examples use are tiny ones."""
    directory = tmp_path_factory.mktemp("named")
    for name in ("google-bert/bert-base-uncased", "distilbert/distilbert-base-uncased"):
        shutil.copytree(bases["bert"], directory / name)
    sentence_transformer(bases["bert"]).save(str(directory / "sentence-transformers" / "all-MiniLM-L6-v2"))
    return directory


def sentence_transformer(base: Path, pooling: str = "mean", normalize: bool = True, longest: int = 24):
    """A SentenceTransformer around the encoder of a base model."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer

    encoder = Transformer(str(base), max_seq_length=longest)
    modules = [encoder, Pooling(encoder.get_embedding_dimension(), pooling)]
    return SentenceTransformer(modules=modules + ([Normalize()] if normalize else []))


@pytest.fixture(scope="session")
def base(bases, kind) -> Path:
    return bases[kind]


@pytest.fixture(scope="session")
def base_without_dropout(bases, tmp_path_factory) -> Path:
    """The tiny BERT without dropout, for runs that must not depend on which process draws it."""
    model = AutoModel.from_pretrained(bases["bert"])
    model.config.hidden_dropout_prob = model.config.attention_probs_dropout_prob = 0.0
    directory = tmp_path_factory.mktemp("base") / "bert-without-dropout"
    model.save_pretrained(directory)
    for file in bases["bert"].glob("tokenizer*"):
        shutil.copy(file, directory)
    return directory


@pytest.fixture(scope="session")
def train_file(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("data") / "train.txt"
    path.write_text("\n".join(SENTENCES) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def pairs(tmp_path_factory) -> dict[str, object]:
    """The keys of a recipe that trains on pairs of sentences: their views differ without dropout too."""
    path = tmp_path_factory.mktemp("data") / "pairs.csv"
    rows = [f"{text},{SENTENCES[(number * 37 + 5) % len(SENTENCES)]}" for number, text in enumerate(SENTENCES)]
    path.write_text("anchor,positive\n" + "\n".join(rows) + "\n", encoding="utf-8")
    return {"train_file": str(path), "text_columns": ["anchor", "positive"]}


@pytest.fixture(scope="session")
def dev_file(tmp_path_factory) -> Path:
    return write_pairs(tmp_path_factory.mktemp("data") / "dev.csv")


@pytest.fixture(scope="session")
def judging_file(dev_file) -> Path:
    """The pairs of `dev_file` in a file of their own: pairs of one file would be split to choose and to judge."""
    return Path(shutil.copy(dev_file, dev_file.with_name("judging.csv")))


@pytest.fixture(autouse=True)
def fresh_accelerator():
    """Reset accelerate after each test, since it keeps the first precision that a process asks for."""
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.fixture(scope="session")
def real_data() -> Path:
    """A directory of real data, with `base/` and `data/` inside. Without it, the test is skipped and says so."""
    path = Path(os.environ.get("CSEZOO_REAL_DATA", Path(__file__).parents[2] / "shared"))
    if not (path / "data" / "senteval" / "downstream").is_dir():
        pytest.skip(f"REAL DATA NOT TESTED: no data/senteval in {path}; set CSEZOO_REAL_DATA")
    return path
