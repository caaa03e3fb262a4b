"""The exports that every client gets (method x pooling x projection x whitening, two kinds of backbone), and texts."""

import shutil
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from tqdm import tqdm
from transformers import AutoModel

from csezoo.modeling import METHODS, SentenceEncoderConfig
from csezoo.modeling.encoding import load_tokenizer
from csezoo.training.publishing.onnx_graph import write_onnx
from csezoo.training.publishing.plain import separate_template_mask, write_plain_model, write_without_plain_form
from tests.conftest import SENTENCES, tiny_config
from tests.methods import CONFIGS
from tests.repositories import tiny_repository

PROMPT = "this sentence : {sentence} means {mask} ."
POOLINGS = {
    "cls": {"pooling": "cls"},
    "mean": {"pooling": "mean"},
    "max": {"pooling": "max"},
    "first_last_mean": {"pooling": "first_last_mean"},
    "last2_mean": {"pooling": "last2_mean"},
    "prompt": {"pooling": "prompt", "prompts": [PROMPT]},
}
LAYERS = {
    "none": {"projection": "none"},
    "tanh": {"projection": "tanh", "projection_at_test": True},
    "batchnorm": {"projection": "batchnorm", "projection_at_test": True},
}
WHITENED = {"": {}, "-whitened": {"whitening_size": 8}}
# What only an ONNX file can do.
ONNX_ONLY = {"denoised": {**POOLINGS["prompt"], "denoise": "always"}}

# A text with the token that the export of a prompt adds for the mask of its template. It is the export's own token, in
# whatever text it is written, so that no client is compared on it there.
OWN_TOKEN = "own token"
# The tiny BERT knows only the words of `SENTENCES`, so that every other word is unknown to it; RoBERTa reads bytes.
TEXTS = {
    "sentences": SENTENCES[::4],
    "empty": ["", " ", "\n\t"],
    "long": ["the small cat " * 40, " ".join(SENTENCES[:30]), "house" * 300],
    "multilingual": [
        "Eine Katze sitzt auf der Matte.",
        "Où est la bibliothèque ?",
        "El niño come piñas.",
        "Кошка сидит на коврике.",
        "猫がマットの上に座っている。",
        "고양이가 매트 위에 앉아 있다.",
        "القطة تجلس على السجادة",
        "बिल्ली चटाई पर बैठी है।",
        "İstanbul'da ılık bir gün",
        "e\u0301clair and \u00e9clair",
        "the cat 🙂 sees 👩‍👩‍👧 the house",
        "zero\u200bwidth\u00a0space",
    ],
    "special tokens": [
        "the [MASK] sees the house .",
        "the <mask> sees the house .",
        "[CLS] the cat [SEP] the dog [SEP]",
        "<s> the cat </s> the dog </s>",
        "[PAD] <pad> [UNK] <unk>",
        "the [mask] and the <MASK>",
        "{sentence} means {mask}",
        'a "quoted" text with \\ and / and \t tab',
        "THE Small CAT, sees... the house!!",
    ],
    OWN_TOKEN: ["<|endoftext|> [TEMPLATE_MASK]"],
}


@dataclass(frozen=True)
class Setting:
    """One export.

    Args:
        name: of its directory.
        method, kind, keys: of its configuration.
    """

    name: str
    method: str
    kind: str
    keys: dict

    @property
    def pooling(self) -> str:
        return self.config.pooling

    @property
    def projection(self) -> str:
        """The projection that is kept at test."""
        return self.config.projection if self.config.projection_at_test else "none"

    @property
    def whitened(self) -> bool:
        return bool(self.config.whitening_size)

    @property
    def own_code(self) -> bool:
        """Whether it has no plain form."""
        return bool(self.config.needs_own_code)

    @cached_property
    def config(self) -> SentenceEncoderConfig:
        keys = {"prompt_token_ids": [[[1], [2]]]} if "prompts" in self.keys else {}
        return METHODS[self.method][0](backbone_config=tiny_config(self.kind), **keys, **self.keys)


def settings() -> list[Setting]:
    """Return the settings: SimCSE with every pooling and layer on top, and every method as it is."""
    found = []
    for kind in ("bert", "roberta"):
        for pooling, keys in POOLINGS.items():
            for layers, more in LAYERS.items():
                for ending, whitening in WHITENED.items():
                    name = f"simcse-{pooling}-{layers}{ending}-{kind}"
                    found.append(Setting(name, "simcse", kind, keys | more | whitening))
        others = {f"simcse-prompt-{name}": keys for name, keys in ONNX_ONLY.items()}
        others |= {name: keys for name, keys in CONFIGS.items() if not name.startswith("simcse-")}
        found += [Setting(f"{name}-{kind}", name.split("-")[0], kind, keys) for name, keys in others.items()]
    return found


def save(setting: Setting, directory: Path) -> None:
    """Save a tiny checkpoint in `code`, and its exports in `plain` (if it has one) and `onnx`, under its name.

    The vectors of the checkpoint are written last, so that an interrupted setting is made again.
    """
    source, plain, onnx = (directory / form / setting.name for form in ("code", "plain", "onnx"))
    expected = directory / "expected" / f"{setting.name}.npz"
    if expected.exists():
        return
    for path in (source, plain, onnx):
        shutil.rmtree(path, ignore_errors=True)
        path.parent.mkdir(parents=True, exist_ok=True)
    tiny_repository(source, setting.method, setting.kind, **setting.keys)
    model = AutoModel.from_pretrained(source)
    tokenizer = load_tokenizer(model)
    vectors = {group: model.encode(texts, tokenizer) for group, texts in TEXTS.items()}
    if model.config.pooling == "prompt":
        tokenizer = separate_template_mask(model, tokenizer)
    onnx.mkdir()
    if model.config.needs_own_code:
        write_without_plain_form(onnx, model, tokenizer)
    else:
        plain.mkdir()
        write_plain_model(plain, model, tokenizer)
        shutil.copytree(plain, onnx, dirs_exist_ok=True)
    write_onnx(onnx / "onnx" / "model.onnx", model, tokenizer, [*TEXTS["sentences"][:3], *TEXTS["special tokens"][:2]])
    expected.parent.mkdir(exist_ok=True)
    np.savez(expected, **vectors)


def save_all(chosen: list[Setting], directory: Path) -> None:
    for setting in tqdm(chosen, desc="Exporting", disable=not sys.stderr.isatty()):
        save(setting, directory)
        print(setting.name, flush=True)


def expected_vectors(setting: Setting, directory: Path) -> dict[str, np.ndarray]:
    """Return the vectors of the checkpoint `(n, D)`, by group of texts."""
    with np.load(directory / "expected" / f"{setting.name}.npz") as stored:
        return dict(stored)
