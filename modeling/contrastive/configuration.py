"""The configuration that every sentence encoder of the zoo shares."""

from collections.abc import Sequence
from typing import Any, ClassVar

from transformers import AutoConfig, BertConfig, PretrainedConfig, PreTrainedTokenizerBase

from ..serving.encoding_csezoo import SIMILARITIES
from ..serving.pooling_csezoo import size_after
from .allowed_values import SIZE, WEIGHT, check_named_prompts, check_prompt, check_value
from .keys import declared_keys, default_of, key

POOLING_MODES = ("cls", "mean", "max", "first_last_mean", "embeddings_last_mean", "last2_mean", "last", "wk", "prompt")
PLAIN_POOLINGS = tuple(mode for mode in POOLING_MODES if mode != "prompt")  # which need no template


class SentenceEncoderConfig(PretrainedConfig):
    """The configuration of a sentence encoder: its backbone, and everything from token vectors to the loss.

    A subclass is the configuration of a method. It declares its hyperparameters by `key`, and sets `model_type`.
    transformers makes the constructor, which takes them by name.

    Raises:
        ValueError: a value is outside its range, or two values contradict each other.
    """

    sub_configs = {"backbone_config": AutoConfig}

    backbone_config: PretrainedConfig = key(
        None,
        "Configuration (or its dict) of the encoder or decoder, of any family; BERT-base by default.",
        in_recipes=False,
    )
    pooling: str = key(
        "cls",
        "`cls`, `mean`, `max`, `first_last_mean`, `embeddings_last_mean`, `last2_mean`, `last`, `wk` (see "
        "`pooling.pool`) or `prompt`: the vector at the mask token of a template. A causal model has no `cls`: its "
        "first token sees no other.",
        POOLING_MODES,
    )
    projection: str = key(
        "tanh",
        "Layers applied to the pooled vector, after the template's bias was subtracted (`denoise`): `tanh` (SimCSE's "
        "MLP), `batchnorm` (DiffCSE's projector), `gelu` (SG-OPT's head) or `none`; or `mlm_transform` (the transform "
        "of BERT's masked-LM head, in supervised PromptBERT), applied to vector and bias before the subtraction.",
        ("none", "tanh", "batchnorm", "gelu", "mlm_transform"),
    )
    projection_at_test: bool = key(
        False,
        "Whether the projection stays in the serving model. Unsupervised SimCSE trains with it and tests without.",
    )
    projection_size: int = key(4096, "Width of the `gelu` projection.", SIZE)
    prompts: list[str] | None = key(
        None,
        "Templates with `{sentence}` and `{mask}`, for `prompt` pooling, or with `{sentence}` alone, for `last` "
        "(PromptEOL). View v trains with the v-th template (the last one for all further views); the first one is "
        "used at test.",
    )
    prompt_token_ids: Sequence[Sequence[list[int]]] | None = key(
        None,
        "Ids of each template before and after the sentence, with special tokens; set from the tokenizer when a model "
        "is built.",
        in_recipes=False,
    )
    denoise: str = key(
        "none",
        "When to subtract the template's bias (PromptBERT): `none`, only in `train` (its unsupervised setting), or "
        "`always` (its supervised setting).",
        ("none", "train", "always"),
    )
    denoise_position_offset: int = key(
        0,
        "First position id of the template's bias. PromptBERT's release counts from 0 for RoBERTa too, although its "
        "real inputs start at 2.",
        "[0, 100_000]",
    )
    full_stop: bool = key(
        False,
        "Whether the serving tokenizer adds a full stop to a sentence that ends without one, see "
        "`templates.FULL_STOP`; PromptBERT's evaluation does.",
    )
    mask_token_id: int | None = key(None, "Id of the tokenizer, set when a model is built.", in_recipes=False)
    special_token_ids: list[int] | None = key(
        None, "Ids of the tokenizer, set when a model is built.", in_recipes=False
    )
    batch_size: int | None = key(
        None,
        "Sentences in a training batch, over all processes, for a method whose sizes depend on it; set when a model "
        "is built.",
        in_recipes=False,
    )
    temperature: float = key(0.05, "τ of the contrastive loss; 0.05 in SimCSE.", "(0, 1_000]")
    contrastive_weight: float = key(
        1.0, "Weight of the contrastive loss; 0 trains on the auxiliary losses only.", WEIGHT
    )
    hard_negative_weight: float = key(
        0.0, "Log weight of each sentence's own hard negative, see `objectives.info_nce`.", "[-1_000, 1_000]"
    )
    mask_duplicates: bool = key(
        False,
        "If a batch contains a sentence twice, do not use it as a negative of itself, see "
        "`objectives.duplicate_rows`; false in the papers.",
    )
    mlm_weight: float = key(
        0.0, "Weight of an auxiliary masked language modelling loss (0.1 in SimCSE), 0 for none.", WEIGHT
    )
    mlm_probability: float = key(0.15, "Share of tokens masked for `mlm_weight`.", "(0, 1)")
    nli_classes: int = key(
        0,
        "Kind of the labelled pairs, see `natural_language_inference`: 2 for triplets with an entailed and a "
        "contradicted hypothesis, 3 for pairs with one of three labels, 0 for none.",
        (0, 2, 3),
    )
    nli_objective: str = key(
        "classifier",
        "What labelled pairs train: a softmax `classifier` of their classes, or `contrastive`, the loss of supervised "
        "SimCSE on triplets.",
        ("classifier", "contrastive"),
    )
    nli_weight: float = key(0.0, "Weight of the loss of labelled pairs beside the contrastive loss.", WEIGHT)
    rank_weight: float = key(
        0.0,
        "Weight of rank distillation from the recipe's `teachers`, see `rank_distillation`; 1 in RankCSE, 0 for none.",
        WEIGHT,
    )
    rank_loss: str = key(
        "listnet",
        "Loss of rank distillation: `listnet` compares distributions, `listmle` compares orders.",
        ("listnet", "listmle"),
    )
    rank_temperature: float = key(
        0.05, "Temperature of the model's similarities in `rank_loss`; 0.05 in RankCSE.", "(0, 1_000]"
    )
    teacher_temperature: float = key(0.05, "Temperature of the teachers' similarities in `listnet`.", "(0, 1_000]")
    rank_consistency_weight: float = key(
        0.0,
        "Weight of RankCSE's ranking consistency, which needs no teacher: both views of a sentence should rank the "
        "sentences of the batch alike, see `rank_distillation`; 1 in RankCSE, 0 for none.",
        WEIGHT,
    )
    matryoshka_dims: list[int] | None = key(
        None,
        "Also train the first dimensions of the served vector alone, so that it can be cut to one of these lengths; "
        "none by default.",
        SIZE,
    )
    matryoshka_weights: list[float] | None = key(
        None,
        "Weight of the loss of each of `matryoshka_dims`, beside `contrastive_weight` of the complete vector; 1 each "
        "by default.",
        WEIGHT,
    )
    ema_decay: float = key(
        0.0,
        "Serve an exponential moving average of the weights, which keeps this share of its value at each update and "
        "restarts with each stage. 0 serves the trained weights.",
        "[0, 1)",
    )
    lora_rank: int = key(
        0,
        "Rank of low-rank updates of the query and value projections (LoRA), which are trained instead of the "
        "encoder; 0 trains the encoder. The updates start at zero, and have no scaling factor.",
        "[0, 10_000]",
    )
    lora_dropout: float = key(
        0.05,
        "Dropout on what the updates read, which makes views differ in a backbone without dropout; 0.05 in PromptEOL.",
        "[0, 1)",
    )
    whitening_size: int | None = key(
        None,
        "Dimensions that a fitted whitening keeps, see `whitening.Whitening`; none by default.",
        SIZE,
        in_recipes=False,
    )
    flow_width: int | None = key(
        None,
        "Hidden units in the couplings of a fitted flow, see `flow.Flow`; none by default.",
        SIZE,
        in_recipes=False,
    )
    base_layers: list[dict[str, Any]] | None = key(
        None,
        "Layers that follow the pooling of the base model, see `pooling_csezoo.LAYERS`; set from its repository when "
        "a model is built. They are trained with the encoder.",
        in_recipes=False,
    )
    normalize: bool = key(
        False, "Serve vectors of length 1, whose dot products are their cosines. Scores by cosine stay the same."
    )
    named_prompts: dict[str, str] | None = key(
        None, "Texts that the served model can put in front of a text, by name (`query`, `document`)."
    )
    default_prompt_name: str | None = key(
        None,
        "Which of `named_prompts` is in front of every text, in training and wherever the served model is not told "
        "another one; none by default.",
    )
    similarity: str = key(
        "cosine",
        "What the served model's `similarity` computes: `cosine`, `dot`, `euclidean` or `manhattan`. Training and "
        "scores compare cosines.",
        tuple(SIMILARITIES),
    )
    truncate_dim: int | None = key(None, "Serve this many dimensions, the first ones; all by default.", SIZE)

    def __post_init__(self, **kwargs: Any) -> None:
        if self.backbone_config is None:
            self.backbone_config = BertConfig()
        elif isinstance(self.backbone_config, dict):
            self.backbone_config = AutoConfig.for_model(**self.backbone_config)
        self.backbone_config.return_dict = True  # its outputs are read by name
        self.check()
        super().__post_init__(**kwargs)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        """Load the configuration of a training model or of a published repository."""
        config_dict, kwargs = cls.get_config_dict(pretrained_model_name_or_path, **kwargs)
        return cls.from_dict(config_dict, **kwargs)

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Make a configuration of its own dict, or of the `config.json` of a published repository."""
        if "csezoo" in config_dict:
            family = {key: value for key, value in config_dict.items() if key not in ("auto_map", "csezoo")}
            backbone_config = config_dict.get("backbone_config", family)
            config_dict = {"backbone_config": backbone_config, **cls.published_keys(config_dict["csezoo"])}
        return super().from_dict(config_dict, **kwargs)

    @classmethod
    def published_keys(cls, csezoo: dict[str, Any]) -> dict[str, Any]:
        """Return the keys that a published repository tells. What it does not have (the losses) keeps its default.

        Args:
            csezoo: of its `config.json`, see `CsezooConfig`.
        """
        keys = {"pooling": csezoo["pooling"], "mask_token_id": csezoo.get("mask_token_id")}
        keys["projection_at_test"] = "projection" in csezoo
        if template := csezoo.get("template"):
            keys |= {"prompts": [template["text"]], "prompt_token_ids": [[template["before"], template["after"]]]}
        if "projection" in csezoo:
            keys["projection"] = csezoo["projection"]
        layers = csezoo.get("layers", [])
        keys |= {"base_layers": layers[: csezoo.get("base_layers", 0)], "truncate_dim": csezoo.get("truncate_dim")}
        keys["normalize"] = bool(layers) and layers[-1]["type"] == "Normalize"
        keys |= {"named_prompts": csezoo.get("prompts"), "default_prompt_name": csezoo.get("default_prompt_name")}
        keys["similarity"] = csezoo.get("similarity", "cosine")
        if flows := [layer for layer in layers if layer["type"] == "Flow"]:
            keys["flow_width"] = flows[0]["width"]
        if "whitening" in csezoo:
            keys["whitening_size"] = csezoo["whitening"]
        return keys | ({"denoise": "always"} if "denoise" in csezoo else {})

    def check(self) -> None:
        """Check all values, and values that belong together; a model calls it too, because options set them later."""
        for name, declared in declared_keys(type(self)).items():
            value = getattr(self, name)
            if declared.allowed and (value is not None or default_of(type(self), name) is not None):
                for item in value if isinstance(value, list) and value else [value]:
                    check_value(name, item, declared.allowed)
        if (self.pooling == "prompt") != bool(self.prompts) and self.pooling != "last":
            raise ValueError("pooling: prompt and prompts belong together; give both or neither")
        for prompt in self.prompts or []:
            check_prompt(prompt, self.pooling)
        check_named_prompts(self.named_prompts or {}, self.default_prompt_name)
        if self.pooling == "wk" and self.num_hidden_layers < 2:
            raise ValueError("pooling: wk compares layers; the encoder needs at least two")
        if self.denoise != "none" and self.pooling != "prompt":
            raise ValueError(f"denoise: {self.denoise} needs pooling: prompt; set it, or denoise: none")
        if self.denoise != "none" and not self.backbone_config.to_dict().get("position_biased_input", True):
            raise ValueError(
                f"denoise: {self.denoise} gives the template the positions of a longer text, and "
                f"{self.backbone_config.model_type} counts positions itself; set denoise: none"
            )
        if self.base_layers and (self.denoise != "none" or self.projection == "mlm_transform"):
            kinds = " - ".join(layer["type"] for layer in self.base_layers)
            raise ValueError(
                f"base_model: {kinds} after its pooling leaves no place for a prompt's bias or masked-LM transform; "
                "set denoise: none and another projection"
            )
        if self.nli_weight > 0 and self.nli_classes == 0:
            raise ValueError(f"nli_weight: {self.nli_weight} needs nli_classes: 2 (triplets) or 3 (labelled pairs)")
        if self.nli_objective == "contrastive" and self.nli_classes != 2:
            raise ValueError("nli_objective: contrastive needs triplets; set nli_classes: 2")
        dims, weights = self.matryoshka_dims or [], self.matryoshka_weights
        for dim in dims:  # the complete vector has `contrastive_weight`
            check_value("matryoshka_dims", dim, f"[1, {self.pooled_size - 1}]")
        if len(set(dims)) < len(dims):
            raise ValueError(f"matryoshka_dims: {dims} must be different numbers")
        if weights is not None and len(weights) != len(dims):
            raise ValueError(f"matryoshka_weights: {weights} must have one number for each of matryoshka_dims: {dims}")
        if self.projection == "gelu" and self.projection_at_test:
            raise ValueError("projection: gelu is only used in training; set projection_at_test: false")
        if self.projection == "mlm_transform" and not self.projection_at_test:
            raise ValueError("projection: mlm_transform is used in training and at test; set projection_at_test: true")

    def text_prefixes(self, sentences: list[str], tokenizer: PreTrainedTokenizerBase) -> list[list[str | None]]:
        """Data seam: return for each view the prefix of each sentence, with its separator.

        Args:
            sentences: texts of the first column.
            tokenizer: of the backbone, for its special tokens and word pieces.

        Returns:
            One list of prefixes for each view that is made from the sentences. None makes the text empty: it has
            neither prefix nor sentence. An empty result means no prefixes.
        """
        return []

    def longest_prefix(self, tokenizer: PreTrainedTokenizerBase) -> int:
        """Data seam: return the largest number of word pieces that `text_prefixes` adds to a sentence."""
        return 0

    @property
    def prefixes_count_as_text(self) -> bool:
        """Data seam: whether prefix and sentence are truncated together at the recipe's `max_length`."""
        return False

    # Data seam: random edits of the texts in every batch (repeated words, synonyms, cut-offs); none by default.
    # A method defines `edit_sentence(self, views, draw)`. It takes and returns the word pieces of a sentence's views,
    # one list of ids per view, without template and special tokens. `draw` is a random generator for this sentence,
    # seeded by the run's seed, the batch number and the sentence's place in the batch. An edit that uses no other
    # randomness is the same after a resume and for any number of processes, and does not change dropout.
    edit_sentence: ClassVar[Any] = None

    @property
    def edits_special_tokens(self) -> bool:
        """Data seam: whether `edit_sentence` gets the template and the special tokens of each view too."""
        return False

    def most_added_pieces(self, length: int) -> int:
        """Data seam: return the largest number of word pieces that `edit_sentence` adds to at most `length` pieces."""
        return 0

    def view_columns(self, columns: int) -> list[int]:
        """Data seam: return the text column of each view. With one column, a sentence is its own positive."""
        if columns > 2 and not self.takes_three_views:
            raise ValueError(f"text_columns: {self.model_type} needs one text column or two, not {columns}")
        if columns > 3:
            raise ValueError(f"text_columns: {self.model_type} needs one to three text columns, not {columns}")
        return [0, 0] if columns == 1 else list(range(columns))

    @property
    def takes_three_views(self) -> bool:
        """Data seam: whether a sentence may have a third view, such as a hard negative, and not just a pair."""
        return True

    @property
    def views_part_in_training(self) -> bool:
        """Whether training makes views differ that are equal in the first batch, without dropout in the encoder."""
        return self.lora_rank > 0 and self.lora_dropout > 0  # the LoRA updates start at zero, with their dropout

    @property
    def encoded_views(self) -> int | None:
        """Data seam: how many leading views are encoded and contrasted. The others are only for auxiliary losses."""
        return None

    @property
    def passes_per_text(self) -> float:
        """How many forward and backward passes training makes for a text. A forward pass alone counts a third."""
        return 1.0

    @property
    def encoders_in_training(self) -> tuple[int, int]:
        """How many encoders of the backbone's size the training model has: trained ones, frozen ones."""
        return 1, int(self.ema_decay > 0)

    @property
    def needs_generator(self) -> bool:
        """Whether the method edits sentences with a masked language model, the training model's `generator`."""
        return False

    @property
    def nli_classifies(self) -> bool:
        """Whether training has a classifier of labelled pairs."""
        return self.nli_classes > 0 and self.nli_objective == "classifier"

    @property
    def reason_for_labelled_pairs(self) -> str | None:
        """Why the method needs a stage on labelled pairs, or None if it does not."""
        return None

    @property
    def reason_for_whole_batch(self) -> str | None:
        """Why the method cannot encode a batch in mini-batches (`mini_batch_size`), or None if it can."""
        return "masked language modelling (mlm_weight) needs the complete batch" if self.mlm_weight > 0 else None

    @property
    def learns_token_masks(self) -> bool:
        """Whether the training model implements `learned_token_masks`."""
        return False

    @property
    def reason_for_own_code(self) -> str | None:
        """Why a plain encoder with modules of sentence-transformers cannot serve the model, or None if it can."""
        if self.denoise == "always":
            return "it subtracts its template's bias (denoise: always), which depends on the length of the sentence"
        if self.flow_width:
            return "it maps its vectors by a flow (BERT-flow), whose couplings are no module of sentence-transformers"
        if self.pooling == "wk":
            return "its pooling (wk) weighs the layers of every token, which no module of sentence-transformers does"
        return None

    @property
    def prefix_positions(self) -> int:
        """Positions of the backbone that the method uses, so that the text cannot."""
        return 0

    @property
    def bias_length_offset(self) -> int:
        """Added to a sentence's length when the template's bias is looked up."""
        return 0

    @property
    def embedding_size(self) -> int:
        """Length of a sentence embedding."""
        size = self.whitening_size or self.pooled_size
        return min(self.truncate_dim or size, size)

    @property
    def pooled_size(self) -> int:
        """Length of a pooled vector, after the layers of the base model: what a projection and a whitening read."""
        return size_after(self.base_layers or [], self.hidden_size)

    @property
    def default_prompt(self) -> str:
        """The text in front of every text, in training and by default in the served model."""
        return (self.named_prompts or {}).get(self.default_prompt_name or "", "")

    @property
    def hidden_size(self) -> int:
        return self.backbone_config.hidden_size

    @property
    def num_hidden_layers(self) -> int:
        return self.backbone_config.num_hidden_layers

    @property
    def vocab_size(self) -> int:
        return self.backbone_config.vocab_size

    @vocab_size.setter
    def vocab_size(self, value: int) -> None:  # for `resize_token_embeddings`
        self.backbone_config.vocab_size = value

    @property
    def max_position_embeddings(self) -> int:
        return self.backbone_config.max_position_embeddings

    @property
    def initializer_range(self) -> float:
        return self.backbone_config.initializer_range
