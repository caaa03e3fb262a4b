"""The repositories that every client gets (pooling x layers on top, own forms, kinds of backbone), and texts."""

import shutil
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from tqdm import tqdm
from transformers import PreTrainedTokenizerFast

from csezoo.modeling import METHODS, SentenceEncoderConfig
from csezoo.modeling.contrastive.published import TEMPLATE_MASK
from csezoo.training.evaluation.encoders import checkpoint_tokenizer, load_checkpoint
from csezoo.training.publishing.onnx_graph import write_onnx
from tests.conftest import SENTENCES
from tests.methods import CONFIGS, WITHOUT_PLAIN_FORM
from tests.repositories import PROMPT, save_encoder, tiny_backbone, tiny_encoder

POOLINGS = {
    "cls": {"pooling": "cls"},
    "mean": {"pooling": "mean"},
    "max": {"pooling": "max"},
    "last": {"pooling": "last"},
    "first_last_mean": {"pooling": "first_last_mean"},
    "embeddings_last_mean": {"pooling": "embeddings_last_mean"},
    "last2_mean": {"pooling": "last2_mean"},
    "prompt": PROMPT,
}
LAYERS = {
    "none": {"projection": "none"},
    "tanh": {"projection": "tanh", "projection_at_test": True},
    "batchnorm": {"projection": "batchnorm", "projection_at_test": True},
}
WHITENED = {"": {}, "-whitened": {"whitening_size": 8}}
# Settings of SimCSE beside these combinations. The last three have no plain form.
OTHERS = {
    "simcse-prompt-full-stop": {**PROMPT, "full_stop": True},
    "simcse-mlm-transform": {"projection": "mlm_transform", "projection_at_test": True},
    "simcse-prompt-denoised": {**PROMPT, "denoise": "always"},
    "simcse-wk": {"pooling": "wk"},
    "simcse-flow": {"flow_width": 4},
}
# A decoder is another kind of backbone.
OF_DECODER = {
    "last": POOLINGS["last"],
    "last-prompt": {**POOLINGS["last"], "prompts": ["this sentence : {sentence} means in one word :"]},
    "mean": POOLINGS["mean"],
}

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
        f"<|endoftext|> [TEMPLATE_MASK] {TEMPLATE_MASK}",
    ],
}


@dataclass(frozen=True)
class Setting:
    """One repository.

    Args:
        name: of its directory.
        method, keys: of its configuration.
        kind: of its backbone, see `tiny_backbone`.
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
        return bool(self.config.reason_for_own_code)

    @cached_property
    def config(self) -> SentenceEncoderConfig:
        keys = {"prompt_token_ids": [[[1], [2]]]} if "prompts" in self.keys else {}
        return METHODS[self.method][0](backbone_config=tiny_backbone(self.kind)[0], **keys, **self.keys)


def settings() -> list[Setting]:
    """Return the settings: SimCSE with every pooling and layer on top, and every method without a plain form.

    The repository of any other method is one of SimCSE's with other numbers, see `publishing/test_doors.py`. A
    projection does not depend on the kind of backbone, so that each is tried with one.
    """
    methods = {name: CONFIGS[name] for name in sorted(WITHOUT_PLAIN_FORM) if not name.startswith("simcse")}
    found = [Setting(f"simcse-{name}-qwen3", "simcse", "Qwen3", keys) for name, keys in OF_DECODER.items()]
    for kind, projection in (("bert", "batchnorm"), ("roberta", "tanh")):
        named = {**_combined("none"), **OTHERS, **_combined(projection), **methods}
        found += [Setting(f"{name}-{kind}", name.split("-")[0], kind, keys) for name, keys in named.items()]
    return found


def _combined(projection: str) -> dict[str, dict]:
    return {
        f"simcse-{pooling}-{projection}{ending}": keys | LAYERS[projection] | whitening
        for ending, whitening in WHITENED.items()
        for pooling, keys in POOLINGS.items()
    }


def save(setting: Setting, directory: Path) -> None:
    """Save a tiny repository under its name: in `repository` alone, in `onnx` with an ONNX file.

    The vectors of the encoder are written last, so that an interrupted setting is made again. What clients made of an
    earlier one is deleted.
    """
    repository, onnx = (directory / folder / setting.name for folder in ("repository", "onnx"))
    expected = directory / "expected" / f"{setting.name}.npz"
    if expected.exists():
        return
    for result in (directory / "results").glob(f"*/{setting.name}.json"):
        result.unlink()
    for path in (repository, onnx):
        shutil.rmtree(path, ignore_errors=True)
        path.parent.mkdir(parents=True, exist_ok=True)
    encoder = tiny_encoder(setting.method, setting.kind, **setting.keys)
    vectors = {group: encoder.encode(texts) for group, texts in TEXTS.items()}
    save_encoder(repository, encoder)
    shutil.copytree(repository, onnx)
    published = load_checkpoint(str(onnx))
    tokenizer = checkpoint_tokenizer(published, str(onnx))
    texts = [*TEXTS["sentences"][:3], *TEXTS["special tokens"][:2]]
    write_onnx(onnx / "onnx" / "model.onnx", published.eval(), tokenizer, texts)
    expected.parent.mkdir(exist_ok=True)
    np.savez(expected, **vectors)


def save_all(chosen: list[Setting], directory: Path) -> None:
    for setting in tqdm(chosen, desc="Saving", disable=not sys.stderr.isatty()):
        save(setting, directory)
        print(setting.name, flush=True)


def expected_vectors(setting: Setting, directory: Path) -> dict[str, np.ndarray]:
    """Return the vectors of the encoder `(n, D)`, by group of texts."""
    with np.load(directory / "expected" / f"{setting.name}.npz") as stored:
        return dict(stored)


def longer_than_the_limit(setting: Setting, directory: Path) -> dict[str, list[bool]]:
    """Return which texts have too many tokens for the model, by group: the tiny models take 64, template included."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(directory / "repository" / setting.name)
    limit = tokenizer.model_max_length
    return {
        group: [len(ids) > limit for ids in tokenizer(texts, truncation=False).input_ids]
        for group, texts in TEXTS.items()
    }
