"""Write formats beside a published model: ONNX, int8 for ONNX Runtime and OpenVINO, and vectors of another length."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import cast

import yaml
from huggingface_hub import ModelCard, ModelCardData
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase
from transformers.utils import logging

from csezoo.modeling.serving.modeling_csezoo import SETTINGS_NAME
from csezoo.modeling.serving.pooling_csezoo import size_after

from ..errors import UserError, one_line, refuse_missing
from ..evaluation.encoders import checkpoint_tokenizer, load_checkpoint
from ..files import empty_target, new_directory
from ..hub import files_in, is_hidden, local_directory
from .fingerprints import FORMATS, add_checksums
from .onnx_graph import write_onnx
from .quantized import quantize_and_measure
from .staging import PLACEHOLDER, finished_repository

SAVED = ("config.json", "tokenizer.json", "fingerprint.json")  # `save_pretrained` writes no card, and may write parts
NO_CARD = "---\nlibrary_name: sentence-transformers\n---\n"
ONNX = """With ONNX Runtime, the file has the layers after the encoder too:

```python
from onnxruntime import InferenceSession
from transformers import PreTrainedTokenizerFast
from transformers.utils import cached_file
{weights}session = InferenceSession(cached_file("{name}", "onnx/model.onnx"))
texts = ["A cat sits on the mat.", "A dog runs."]
tokenizer = PreTrainedTokenizerFast.from_pretrained("{name}")
batch = tokenizer({texts}, padding=True, truncation=True, return_tensors="np")
inputs = {{name: batch[name] for name in ("input_ids", "attention_mask")}}
embeddings = session.run(["sentence_embedding"], inputs)[0]
```"""
# Of a file above 1.5 GB, which ONNX Runtime reads beside the other one.
WEIGHTS = 'cached_file("{name}", "onnx/model.onnx.data")\n'
CUT = (
    "The vectors are cut to their first {kept} of {size} dimensions. Servers that read only the module `Pooling` "
    "return all of them: keep the first {kept}. A vector of length 1 is shorter when it is cut: normalise it again."
)
OF_ALL = "Scores, pictures and neighbours are those of all {size} dimensions. This copy returns the first {kept}."
NOT_A_NUMBER = "It returns nan for a row that {}."


def export(
    run: str,
    to: str,
    *,
    onnx: bool = False,
    truncate_dim: int | None = None,
    quantize: str | None = None,
    openvino: bool = False,
    data: str | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> None:
    """Write a copy of a published repository with other formats beside the model.

    Args:
        run: a run directory with `best/` in it, a repository directory, or a Hub id.
        onnx: write `onnx/model.onnx`, and compare its vectors with the model's.
        truncate_dim: serve this many dimensions, the first ones.
        quantize: `int8` to also write `onnx/model_int8.onnx`, with what it saves and costs on the card.
        openvino: with `quantize`, also write `openvino/openvino_model_qint8_quantized.xml`.
        data: `hub` or a directory in SentEval's layout, to measure the cost of `quantize` on the seven STS tasks.
        report: called with each line on `quantize`.

    Raises:
        UserError: `run` is not a finished repository of the zoo, no format is asked for, `to` is not empty, a needed
            package is missing, `quantize` has no ONNX file to work on, `truncate_dim` is not below the model's
            dimensions, or the vectors differ by more than 1e-5.

    Example:
        `export("runs/quickstart", "quickstart-onnx", onnx=True)`
    """
    if openvino and not quantize:
        raise UserError(
            "openvino: it adds an int8 file; give --quantize int8 too (OpenVINO can read the float32 ONNX file itself)"
        )
    if not onnx and truncate_dim is None:
        raise UserError(
            "export: a repository is read by every client as it is; give --onnx or --truncate_dim for other formats"
        )
    if quantize and not onnx:
        raise UserError("quantize: it quantises the ONNX file; give --onnx too")
    if data and not quantize:
        raise UserError("data: it measures the cost of --quantize; give --quantize int8 too")
    target = empty_target(to)
    if onnx:
        refuse_missing("--onnx", "onnx", "onnxscript", "onnxruntime")
    if openvino:
        refuse_missing("--openvino", "openvino", "nncf")
    source = finished_repository(str(local_directory(run)), SAVED)
    logging.disable_progress_bar()
    encoder = load_checkpoint(str(source)).eval()
    tokenizer = checkpoint_tokenizer(encoder, str(source))
    size = encoder.embedding_size
    if truncate_dim is not None and not 1 <= truncate_dim < size:
        raise UserError(f"truncate_dim: {truncate_dim} must be at least 1 and below {size}, the dimensions of {run}")
    with new_directory(target) as partial, tqdm(total=3, desc="Exporting", disable=not sys.stderr.isatty()) as bar:
        for name, path in files_in(source).items():
            if not (is_hidden(name) or name.split("/")[0] in FORMATS):  # an export has its own formats alone
                (partial / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, partial / name)
        if truncate_dim is not None:
            encoder.config.csezoo["truncate_dim"] = truncate_dim
            (partial / SETTINGS_NAME).unlink(missing_ok=True)  # they are the model's own from here on
            encoder.save_pretrained(partial)
            (partial / "results.json").unlink(missing_ok=True)  # of the complete vectors, as the scores on the card
        bar.update()
        config = encoder.config
        kept, complete = encoder.embedding_size, size_after(config.csezoo.get("layers", []), config.hidden_size)
        lines = [CUT.format(kept=kept, size=complete)] if kept < complete else []
        if onnx:
            file = partial / "onnx" / "model.onnx"
            write_onnx(file, encoder, tokenizer, _texts(tokenizer))
            prompt = encoder.prompt_text()
            texts = f"[{prompt!r} + text for text in texts]" if prompt else "texts"
            weights = WEIGHTS.format(name=PLACEHOLDER) if file.with_name("model.onnx.data").exists() else ""
            lines.append(ONNX.format(name=PLACEHOLDER, texts=texts, weights=weights))
            unread = [] if encoder.causal else ["is padded on the left"]
            unread += ["lacks the template's mask token"] if encoder.pooling == "prompt" else []
            lines += [NOT_A_NUMBER.format(" or ".join(unread))] if unread else []
        if quantize:
            measured = quantize_and_measure(file, encoder, tokenizer, openvino=openvino, data=data)
            for line in measured:
                report(line)
            lines += measured
        bar.update()
        _add_to_card(partial, lines, None if truncate_dim is None else OF_ALL.format(kept=kept, size=size))
        add_checksums(partial)
        bar.update()


def _texts(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Return the texts on which an ONNX file is checked: short, empty, with a mask token in it, too long."""
    sentence = "A cat sits on the mat."
    return [
        sentence,
        "A man plays the guitar while his friends are dancing in the rain.",
        "Yes",
        "",
        f"{sentence} {tokenizer.mask_token}, it is said.",
        f"{sentence} " * min(tokenizer.model_max_length, 128),  # 1,024 tokens: attention has their square in memory
    ]


def _add_to_card(directory: Path, paragraphs: list[str], of_another_length: str | None) -> None:
    """Add a section on the formats after the section on how to use the model. It replaces an earlier one.

    Scores of vectors of another length are named as such, and are taken out of the metadata, which leaderboards read.
    """
    try:
        file = directory / "README.md"
        card = ModelCard.load(file) if file.is_file() else ModelCard(NO_CARD)
    except (ValueError, yaml.YAMLError) as error:
        raise UserError(f"{directory / 'README.md'} cannot be read ({one_line(error)})") from error
    section = "## Formats\n\n" + "\n\n".join(paragraphs) + "\n\n"
    others = re.sub(r"^## Formats\n.*?(?=^## |\Z)", "", card.text, flags=re.DOTALL | re.MULTILINE)
    # A published card has the name of its repository, and the copy may get another one.
    others = re.sub(r'(\b(?:SentenceTransformer|from_pretrained)\(")[^"]*', rf"\g<1>{PLACEHOLDER}", others)
    if of_another_length:
        data = cast(ModelCardData, card.data)
        data.eval_results = data.model_name = None
        others = others.replace("## Results\n", f"## Results\n\n{of_another_length}\n")
    before, training, after = others.partition("## Training\n")
    card.text = f"{before}{section}{training}{after}" if training else f"{others}\n\n{section}"
    card.save(directory / "README.md")
