"""The clients that load a repository: how each is installed, the script that embeds with it, and what it cannot do.

A limit that is declared here must show in the run, and whatever shows must be declared, see `__main__.py`.
"""

from collections.abc import Collection
from dataclasses import dataclass
from functools import partial

import torch

from csezoo.modeling.serving.pooling_csezoo import OTHER_LAYER
from tests.foreign_clients.settings import Setting

TORCH = f"torch=={torch.__version__.split('+')[0]}"
OF_TWO_LAYERS = tuple(OTHER_LAYER)
NEEDS_MODULES = ("prompt", *OF_TWO_LAYERS)
ON_TOP = ("tanh", "batchnorm", "mlm_transform")  # projections


@dataclass(frozen=True)
class Limit:
    """What a client cannot do, and why. An empty condition is true for every setting.

    Args:
        because: the reason, as a card says it: what the client does instead.
        poolings, projections, whitened, own_code, kinds: the settings it is about.
        texts: the groups of texts it is about; "long" are those that are longer than the model's limit.
    """

    because: str
    poolings: Collection[str] = ()
    projections: Collection[str] = ()
    whitened: bool = False
    own_code: bool = False
    kinds: Collection[str] = ()
    texts: Collection[str] = ()

    def holds(self, setting: Setting, group: str) -> bool:
        wanted = (
            (self.poolings, setting.pooling),
            (self.projections, setting.projection),
            (self.kinds, setting.kind),
            (self.texts, group),
        )
        met = all(not values or value in values for values, value in wanted)
        return met and setting.whitened >= self.whitened and setting.own_code >= self.own_code


@dataclass(frozen=True)
class Client:
    """A client.

    Args:
        name: as the documentation has it.
        form: what it reads: `trusted` (the repository with its code), `plain` (the repository without) or `onnx`.
        script: in `scripts/`; None for a client that was read and not run.
        packages: pip installs them into an environment of its own, or npm if the script is JavaScript; empty for what
            this environment has.
        limits: what it cannot do.
        needs_hub: whether it reads from a Hub only.
    """

    name: str
    form: str
    script: str | None = None
    packages: tuple[str, ...] = ()
    limits: tuple[Limit, ...] = ()
    needs_hub: bool = False

    @property
    def npm(self) -> bool:
        return bool(self.script) and self.script.endswith(".mjs")


ONE_LAYER = Limit("its graph returns the last layer only, and this mean needs two", OF_TWO_LAYERS)
TOKENS = partial(Limit, "it returns the vectors of the tokens, and leaves the rest to you")
CUT = Limit(
    "it cuts a text after it has added the special tokens and the template, and loses the last of them (without the "
    "mask token the vector is nan); shorten long texts first",
    texts=("long",),
)
MEAN = "it takes the mean of the last layer, whatever `1_Pooling` says"
CLIENTS = (
    Client("sentence-transformers 6, with trust", "trusted", "sentence_transformers_trusting.py"),
    Client("sentence-transformers 6", "plain", "sentence_transformers_torch.py"),
    Client(
        "sentence-transformers 6, OpenVINO",
        "plain",
        "sentence_transformers_openvino.py",
        ("sentence-transformers[openvino]==6.2.0", TORCH),
        (ONE_LAYER,),
    ),
    Client(
        "sentence-transformers 5",
        "plain",
        "sentence_transformers_torch.py",
        ("sentence-transformers[onnx]==5.7.0", TORCH),
    ),
    Client(
        "sentence-transformers 5, ONNX",
        "onnx",
        "sentence_transformers_onnx.py",
        ("sentence-transformers[onnx]==5.7.0", TORCH),
        (ONE_LAYER, Limit("it refuses a model without a plain form", own_code=True)),
    ),
    Client("mteb", "plain", "mteb_loader.py"),
    Client(
        "transformers pipeline",
        "plain",
        "transformers_pipeline.py",
        limits=(TOKENS(NEEDS_MODULES), TOKENS(projections=ON_TOP), TOKENS(whitened=True)),
    ),
    Client("ONNX Runtime", "onnx", "onnx_runtime.py"),
    Client("OpenVINO", "onnx", "openvino_runtime.py", ("openvino==2026.4.1", "tokenizers==0.23.3")),
    Client("fastembed", "onnx", "fastembed_custom.py", ("fastembed==0.9.1",)),
    Client("transformers.js", "onnx", "transformers_js.mjs", ("@huggingface/transformers@4.3.1",), (CUT,)),
    Client(
        "embed-anything",
        "plain",
        "embed_anything_bert.py",
        ("embed-anything==0.7.1", "numpy"),
        (
            Limit("it does not know RoBERTa", kinds=("roberta",)),
            Limit("it does not know `Qwen3Model`", kinds=("Qwen3",)),
            Limit(MEAN, ("max", "last", *NEEDS_MODULES)),
            Limit("it skips `Dense`", projections=ON_TOP),
            Limit("it skips `Dense`", whitened=True),
            Limit("it cuts at `max_position_embeddings`, not at the tokenizer's limit", texts=("long",)),
        ),
        needs_hub=True,
    ),
    Client(
        "Text Embeddings Inference, GPU",
        "plain",
        limits=(
            Limit("it refuses to start: it has no maximum", ("max",)),
            Limit("it refuses to start: it does not know the module in `1_Pooling`", NEEDS_MODULES),
            Limit("it refuses to start: it has neither ReLU nor GELU in `Dense`", projections=ON_TOP[1:]),
        ),
    ),
    Client("Text Embeddings Inference, CPU", "onnx"),
    Client(
        "vLLM",
        "plain",
        limits=(
            Limit("it has no maximum, and takes the first token instead, without an error", ("max",)),
            Limit("it skips the module before `Pooling`, without an error", NEEDS_MODULES),
            Limit("it skips `LayerNorm`, without an error", projections=("mlm_transform",)),
        ),
    ),
)
