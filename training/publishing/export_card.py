"""The card of an export: the checkpoint's card, with a new section on how to use it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import yaml
from huggingface_hub import ModelCard

from csezoo.modeling.configuration_sentence_encoder import SentenceEncoderConfig
from csezoo.modeling.modeling_sentence_encoder import SentenceEncoderModel

from ..errors import UserError, one_line
from .clients import works_with
from .plain import IDENTITY, RELU, TANH, affine_layers
from .staging import PLACEHOLDER

TEXTS = 'texts = ["A cat sits on the mat.", "A dog runs."]'
MEAN = "({tokens} * mask).sum(1) / mask.sum(1)"
POOLED = {
    "cls": "tokens[:, 0]",
    "mean": MEAN.format(tokens="tokens"),
    "max": "tokens.masked_fill(mask == 0, -torch.inf).amax(1)",
    "first_last_mean": MEAN.format(tokens="(output.hidden_states[1] + tokens) / 2"),
    "embeddings_last_mean": MEAN.format(tokens="(output.hidden_states[0] + tokens) / 2"),
    "last2_mean": MEAN.format(tokens="(output.hidden_states[-2] + tokens) / 2"),
    "last": "tokens[torch.arange(len(mask)), mask[:, :, 0].sum(1) - 1]",
    "prompt": 'tokens[batch["input_ids"] == {mask_token_id}]',
}
ACTIVATED = {TANH: "torch.tanh({})", RELU: "torch.relu({})", IDENTITY: "{}"}
WORDS = {
    "cls": "the last layer's vector of the first token",
    "mean": "the mean of the last layer's token vectors",
    "max": "the maximum of the last layer's token vectors, feature by feature",
    "first_last_mean": "the mean of the token vectors of the first layer and the last",
    "embeddings_last_mean": "the mean of the token vectors of the embedding layer and the last layer",
    "last2_mean": "the mean of the token vectors of the last two layers",
    "last": "the last layer's vector of the last token",
    "prompt": "the last layer's vector at the mask token of the template that the tokenizer puts around a sentence",
}
LEFT_PADDING = "Pad batches on the right, as the tokenizer does by default. Padding on the left changes the vectors."
NOT_A_NUMBER = (
    "The ONNX file returns nan for a row that is padded on the left, or that lacks the template's mask token."
)


def ways_to_use(directory: Path, encoder: SentenceEncoderModel, truncate_dim: int | None = None) -> dict[str, str]:
    """Return Python code that turns `texts` into `embeddings`, by the library it uses.

    Args:
        directory: the export, without its card.
        encoder: the exported model.
        truncate_dim: dimensions to keep.
    """
    ways = {}
    if (directory / "modules.json").exists():
        ways["sentence-transformers"] = f"""from sentence_transformers import SentenceTransformer
{TEXTS}
embeddings = SentenceTransformer("{PLACEHOLDER}").encode(texts)"""
        cut = "" if truncate_dim is None else f"\nembeddings = embeddings[:, :{truncate_dim}]"
        ways["transformers alone"] = _with_transformers(directory, encoder) + cut
    if (directory / "onnx").exists():
        ways["ONNX Runtime"] = f"""from onnxruntime import InferenceSession
from transformers import AutoTokenizer
from transformers.utils import cached_file
{TEXTS}
session = InferenceSession(cached_file("{PLACEHOLDER}", "onnx/model.onnx"))
batch = AutoTokenizer.from_pretrained("{PLACEHOLDER}")(texts, padding=True, truncation=True, return_tensors="np")
inputs = {{name: batch[name] for name in ("input_ids", "attention_mask")}}
embeddings = session.run(["sentence_embedding"], inputs)[0]"""
    return ways


def _with_transformers(directory: Path, encoder: SentenceEncoderModel) -> str:
    pooled = POOLED[encoder.config.pooling].format(mask_token_id=encoder.config.mask_token_id)
    layers = affine_layers(encoder)
    lines = [
        "import torch",
        *(["from safetensors.torch import load_file"] if layers else []),
        "from transformers import AutoModel, AutoTokenizer",
        *(["from transformers.utils import cached_file"] if layers else []),
        TEXTS,
        f'tokenizer = AutoTokenizer.from_pretrained("{PLACEHOLDER}")',
        f'model = AutoModel.from_pretrained("{PLACEHOLDER}")',
        'batch = tokenizer(texts, padding=True, truncation=True, return_tensors="pt")',
        "with torch.no_grad():",
        "    output = model(**batch)",
        "tokens = output.last_hidden_state",
        *(['mask = batch["attention_mask"].unsqueeze(-1)'] if "mask" in pooled else []),
        f"embeddings = {pooled}",
    ]
    for folder, (_, activation) in zip(sorted(directory.glob("*_Dense")), layers, strict=True):
        linear = 'torch.nn.functional.linear(embeddings, dense["linear.weight"], dense["linear.bias"])'
        lines.append(f'dense = load_file(cached_file("{PLACEHOLDER}", "{folder.name}/model.safetensors"))')
        lines.append(f"embeddings = {ACTIVATED[activation].format(linear)}")
    return "\n".join(lines)


def export_card(
    source: Path,
    encoder: SentenceEncoderModel,
    ways: dict[str, str],
    obstacle: str | None,
    truncate_dim: int | None = None,
    more: Sequence[str] = (),
) -> ModelCard:
    """Return the checkpoint's card with its section on use replaced.

    Args:
        source: the card of the checkpoint.
        encoder: the exported model.
        ways: see `ways_to_use`.
        obstacle: why the model has no plain form; `None` if it has one.
        truncate_dim: the dimensions that are kept.
        more: paragraphs on other files of the export.
    """
    plain = type(encoder.backbone).__name__
    if obstacle:
        what = f"This is the complete model as an ONNX file. It cannot be a plain `{plain}`: {obstacle}."
    else:
        layers = ", passed through the layers in `*_Dense`" if affine_layers(encoder) else ""
        what = (
            f"This is a plain `{plain}` without custom code. A sentence's vector is {WORDS[encoder.config.pooling]}"
            f"{layers}. The pooler of `{plain}` is not used; its weights are zero."
        )
    same = "The vectors are the same as those of the model it was exported from"
    cut = "" if truncate_dim is None else f", cut to their first {truncate_dim} dimensions"
    use = [f"## Use\n\n{what} {same}{cut}."]
    use += [f"With {way}:\n\n```python\n{code}\n```" for way, code in ways.items()]
    forms = (set() if obstacle else {"plain"}) | ({"onnx"} if "ONNX Runtime" in ways else set())
    use += works_with(cast(SentenceEncoderConfig, encoder.config), forms)
    if not obstacle:
        if truncate_dim is not None:
            use.append(
                f"Servers that read only the module `Pooling` return all dimensions: keep the first {truncate_dim}."
            )
        use += [] if encoder.causal else [LEFT_PADDING]
    if "ONNX Runtime" in ways and not encoder.causal:
        use.append(NOT_A_NUMBER)
    use += more
    section = "\n\n".join(use) + "\n\n"
    try:
        card = ModelCard.load(source)
    except (ValueError, yaml.YAMLError) as error:
        raise UserError(f"{source} cannot be read ({one_line(error)})") from error
    card.data.library_name = "onnx" if obstacle else "sentence-transformers"
    text, replaced = re.subn(r"^## Use\n.*?(?=^## |\Z)", lambda _: section, card.text, flags=re.DOTALL | re.MULTILINE)
    card.text = text if replaced else f"{card.text}\n\n{section}"
    return card
