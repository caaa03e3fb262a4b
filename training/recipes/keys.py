"""The keys of a recipe. Each is declared once; checks, errors, help and reference are made from its declaration."""

from __future__ import annotations

import os
import typing
from dataclasses import asdict, dataclass, field, fields
from functools import cache, partial
from typing import Any, NamedTuple

from ..errors import UserError, as_user_error

OPTIMIZERS = ("adamw", "adamw-transformers4", "adamw-uncorrected", "rmsprop")
# The schedulers of transformers that need nothing but the number of updates, and steps of the recipe's own.
SCHEDULERS = ("linear", "cosine", "constant", "constant_with_warmup", "polynomial", "inverse_sqrt", "stepped")
PATH = "./~"  # the first character of a local directory in a recipe; everything else is a Hub id
POLYNOMIAL_END = 1e-7  # the last learning rate of `polynomial`
# As `dataset`: both sides of all pairs of STS-B, or of all STS data sets.
STSB_SENTENCES = "stsb-sentences"
STS_SENTENCES = "sts-sentences"
BASE_TEACHER = "base"  # as `teachers`: the base model
# What chooses the best checkpoint: the mean of the dev scores of these suites, or the last one.
DEV_SUITES = {"sts-dev": ("sts-dev",), "sts-sickr-dev": ("sts-dev", "sickr-dev"), "transfer-dev": ("transfer",)}
LAST = "last"
# The recipes whose data and base model are made in the run's directory: with labels, without.
QUICKSTARTS = ("quickstart", "quickstart-simcse")
FRACTION = "(0, 1]"
# The updates of a first stage and the number of a process are added to it: numpy takes no seed from 2^32 on.
SEED = "[0, 2_147_483_647]"
BATCH = "[1, 1_000_000]"
ANY_ROWS = "[1, 10_000_000_000]"
UPDATES = "[1, 1_000_000_000]"
ANY_UPDATES = "[0, 1_000_000_000]"


class Key(NamedTuple):
    """The declaration of one key.

    Args:
        group: the heading in the help and in the reference.
        default: its value where a recipe does not set it.
        help: one sentence or two.
        allowed: the choices, or an interval as in mathematics: `[0, 1)` is from 0 to below 1. It applies to each item
            of a list.
        unit: what a number counts.
        hint: its type.
    """

    group: str
    default: Any
    help: str
    allowed: str | tuple = ""
    unit: str = ""
    hint: Any = None


def key(group: str, default: Any, help: str, allowed: str | tuple = "", unit: str = "") -> Any:
    """Declare a key as a field of `Recipe`; the arguments are those of `Key`. Recipes never share a default list."""
    metadata = {"key": Key(group, default, help, allowed, unit)}
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata=metadata)
    return field(default=default, metadata=metadata)


model_key = partial(key, "Model")
data_key = partial(key, "Training data")
pairs_key = partial(key, "Labelled pairs")
optimisation_key = partial(key, "Optimisation")
evaluation_key = partial(key, "Evaluation")
memory_key = partial(key, "Precision and memory")
run_key = partial(key, "Run and publishing")


@dataclass
class Recipe:
    """Every setting of a run. The keys of the method's configuration are in `model`; all others are declared here.

    Raises:
        UserError: a value is not allowed, or two values contradict each other.

    Example:
        >>> Recipe(batch_size=8).epochs
        1.0
    """

    method: str = model_key(
        "simcse",
        "A method of the zoo, or several joined by `+` that change different parts of training (`l2pcsr+diffcse`).",
    )
    base_model: str | None = model_key(
        None,
        "Hub id or directory of the pre-trained encoder. One with the modules of sentence-transformers also tells "
        "`pooling`, `normalize`, `max_length` and more, where neither the recipe nor the command line sets them.",
    )
    base_revision: str | None = model_key(None, "Pinned revision of `base_model` on the Hub.")
    generator: str | None = model_key(
        None, "Hub id or directory of the masked language model that edits sentences for DiffCSE."
    )
    generator_revision: str | None = model_key(None, "Pinned revision of `generator` on the Hub.")
    lower_case: bool = model_key(False, "Lower-case every text in the tokenizer, whatever the base model's does.")
    served_length: int | None = model_key(
        None,
        "Longest text of the served model; by default the longest that the encoder reads. `max_length` is that of "
        "training.",
        "[3, 1_000_000]",
        "word pieces",
    )
    dropout: float | None = model_key(
        None, "Probability of every dropout in the encoder; by default that of the base model.", "[0, 1)"
    )

    dataset: str | None = data_key(
        None,
        f"Hub id of a data set; or `{STSB_SENTENCES}`: both sides of all pairs of STS-B, from `eval_data`; or "
        f"`{STS_SENTENCES}`: both sides of all pairs of the seven STS data sets, with or without a score, as in "
        "ConSERT's release.",
    )
    dataset_file: str | None = data_key(None, "The file of `dataset` to read, or a pattern such as `*.parquet`.")
    dataset_revision: str | None = data_key(None, "Pinned revision of `dataset` on the Hub.")
    train_file: str | None = data_key(
        None,
        "A local text, CSV, TSV, JSON Lines (each also as `.gz`) or Parquet file. It takes precedence over `dataset`.",
    )
    text_columns: list[str] | None = data_key(
        None,
        "One column (each sentence is its own positive), two (anchor, positive) or three (and a hard negative). "
        "By default the only column, or `text`.",
    )
    max_train_sentences: int | None = data_key(
        None, "How many rows to use, from the first on; by default all.", ANY_ROWS, "rows"
    )
    train_fraction: float = data_key(
        1.0, "Keep each row with this probability. Every seed keeps the same rows.", FRACTION
    )
    fraction_seed: int = data_key(
        0, "Seed of the draws of `train_fraction` and `nli_fraction`: another one keeps other rows.", SEED
    )
    streaming: bool = data_key(False, "Read the data while training, instead of preparing it first.")
    shuffle_buffer: int = data_key(
        10_000, "How many rows of a stream are read and shuffled at once.", "[1, 100_000_000]", "rows"
    )
    stream_shards: bool = data_key(
        False, "Each process reads only its share of the files of a stream, not the complete stream."
    )
    num_workers: int | None = data_key(
        None,
        "Processes that prepare batches while the model trains on others. A stream has at most 1. By default 2 for "
        "each GPU (1 for a stream), and none on a CPU, where they would take cores from training.",
        "[0, 64]",
    )
    max_length: int = data_key(
        32, "Longest sentence. Special tokens count; a prompt's template does not.", "[1, 1_000_000]", "word pieces"
    )

    teachers: list[str] | None = data_key(
        None,
        "Rank distillation: one or two directories with a teacher's vectors of the training sentences, as `csezoo "
        f"encode` writes them; or `{BASE_TEACHER}`, the base model as it is served. It needs a `rank_weight`.",
    )
    teacher_share: float = data_key(0.5, "With two teachers, the weight of the first one's similarities.", "[0, 1]")

    nli_file: str | None = pairs_key(
        None, "A local file of labelled pairs, for a first stage (`nli_steps`, `nli_epochs`) and for `nli_weight`."
    )
    nli_dataset: str | None = pairs_key(None, "Hub id of a data set of labelled pairs.")
    nli_dataset_file: str | None = pairs_key(
        None, "The file of `nli_dataset` to read, or a pattern such as `train-*.parquet`."
    )
    nli_dataset_revision: str | None = pairs_key(None, "Pinned revision of `nli_dataset` on the Hub.")
    nli_columns: list[str] | None = pairs_key(
        None, "Premise, entailed and contradicted hypothesis; or premise, hypothesis and label."
    )
    nli_fraction: float = pairs_key(1.0, "Keep each labelled row with this probability.", FRACTION)
    nli_batch_size: int = pairs_key(128, "Labelled rows in a batch, over all processes.", BATCH, "rows")
    nli_steps: int = pairs_key(0, "Length of a first stage on labelled pairs alone.", ANY_UPDATES, "updates")
    nli_epochs: float | None = pairs_key(
        None,
        "Length of the first stage as passes over the labelled data, instead of `nli_steps`.",
        "[0, 100_000]",
        "epochs",
    )
    nli_learning_rate: float | None = pairs_key(
        None, "Learning rate of the first stage; `learning_rate` by default.", "[0, 100]"
    )
    nli_decay_steps: int | None = pairs_key(
        None,
        "Length of the first stage's learning rate schedule, at least the length of the stage. "
        "By default the length of the second stage.",
        UPDATES,
        "updates",
    )

    batch_size: int = optimisation_key(
        64, "Sentences in a batch, over all processes. Each sees the others as negatives.", BATCH, "sentences"
    )
    mini_batch_size: int | None = optimisation_key(
        None,
        "Sentences that a process encodes at a time. The gradient is that of the complete batch. The memory is "
        "that of a mini-batch, at the price of a second forward pass.",
        BATCH,
        "sentences",
    )
    gradient_accumulation_steps: int = optimisation_key(
        1, "Batches in an update. A sentence sees no negatives of other batches.", "[1, 100_000]", "batches"
    )
    length_window: int = optimisation_key(
        0,
        "Put sentences of similar length into a batch: sort the sentences of this many batches by length, cut them "
        "into batches again, and shuffle these. "
        "0 leaves batches random, as in the papers.",
        "[0, 1_000_000]",
        "batches",
    )
    epochs: float = optimisation_key(1.0, "Passes over the training data.", "(0, 100_000]", "epochs")
    max_steps: int | None = optimisation_key(
        None, "Train this long instead of `epochs`; 0 trains nothing.", ANY_UPDATES, "updates"
    )
    optimizer: str = optimisation_key(
        "adamw",
        "AdamW of torch; AdamW of transformers 4 (the releases of SimCSE, PromptBERT, DiffAug, L2P-CSR, DiffCSE and "
        "SG-OPT); the same without bias correction (the releases of ConSERT, IS-BERT and SBERT); or RMSprop of torch.",
        OPTIMIZERS,
    )
    learning_rate: float = optimisation_key(3e-5, "Highest learning rate.", "[0, 100]")
    weight_decay: float = optimisation_key(0.0, "Weight decay.", "[0, 100]")
    adam_betas: list[float] = optimisation_key([0.9, 0.999], "The two betas of AdamW.", "[0, 1)")
    adam_epsilon: float = optimisation_key(1e-8, "Epsilon of the optimizer.", "[0, 1]")
    rmsprop_alpha: float = optimisation_key(
        0.99, "Share of its average of squared gradients that RMSprop keeps: 0.99 in torch, 0.9 in Keras.", "[0, 1)"
    )
    max_grad_norm: float = optimisation_key(1.0, "Clip gradients to this norm; 0 does not clip.", "[0, 1_000_000_000]")
    lr_scheduler: str = optimisation_key(
        "linear",
        "Learning rate schedule of transformers, or `stepped`: `lr_factors` after `lr_boundaries`.",
        SCHEDULERS,
    )
    lr_boundaries: list[int] | None = optimisation_key(
        None, "Updates of a stage after which a `stepped` learning rate changes, in rising order.", UPDATES, "updates"
    )
    lr_factors: list[float] | None = optimisation_key(
        None, "Share of the highest learning rate after each of `lr_boundaries`.", "[0, 1]"
    )
    warmup_ratio: float = optimisation_key(
        0.0, "Share of the updates in which the learning rate rises from 0 to the highest.", "[0, 1)"
    )

    eval_data: str = evaluation_key(
        "hub", "STS pairs for dev and test: `hub`, a directory in SentEval's layout, or `none`."
    )
    dev_file: str | None = evaluation_key(
        None,
        "CSV file (sentence1, sentence2, score) of dev pairs, instead of `eval_data`. Without a `test_file`, or an "
        "`eval_data` in a directory, half of the pairs choose the checkpoint and the others judge it.",
    )
    test_file: str | None = evaluation_key(
        None, "CSV file (sentence1, sentence2, score) of test pairs, instead of `eval_data`."
    )
    eval_steps: int = evaluation_key(
        125, "Updates between two dev evaluations. Each writes a checkpoint.", UPDATES, "updates"
    )
    select_by: str = evaluation_key(
        "sts-dev",
        "What chooses the best checkpoint: STS-B dev (or `dev_file`), the mean of STS-B dev and SICK-R dev, the mean "
        "accuracy of the seven transfer tasks on dev (SentEval's faster protocol; slow), or nothing: the last one is "
        "taken.",
        (*DEV_SUITES, LAST),
    )
    endurance: int | None = evaluation_key(
        None, "Stop after the dev score has dropped this many times (SG-OPT).", UPDATES, "drops"
    )
    patience: int | None = evaluation_key(
        None,
        "Stop after this many dev evaluations in a row without a new best score (ConSERT).",
        UPDATES,
        "evaluations",
    )
    soup: int = evaluation_key(
        0,
        "Serve an average of this many checkpoints with the best dev scores, or of fewer (Wortsman et al. 2022). From "
        "the best one on, each is added unless it lowers the dev score of the average. 0 serves the best checkpoint.",
        "[0, 1_000]",
        "checkpoints",
    )
    eval_batch_size: int = evaluation_key(
        128, "Largest number of texts in a forward pass of the evaluation.", BATCH, "texts"
    )
    whitening: int | None = evaluation_key(
        None, "Fit a whitening after training and keep this many dimensions.", "[1, 10_000_000]", "dimensions"
    )
    whitening_sentences: int = evaluation_key(
        10_000, "Training sentences that the whitening is fitted on.", ANY_ROWS, "sentences"
    )
    whitening_power: float = evaluation_key(
        1.0,
        "With 1, all dimensions have the same variance. With 0 they keep theirs, as principal components do.",
        "[0, 1]",
    )
    whitening_updates: int = evaluation_key(
        0,
        "Updates that teach the kept dimensions to rank sentences as all dimensions do. They follow the fit.",
        ANY_UPDATES,
        "updates",
    )
    flow: bool = evaluation_key(False, "Fit a flow after training (BERT-flow): an invertible map to a Gaussian.")
    flow_sentences: int | None = evaluation_key(
        None, "Training sentences that the flow is fitted on; all by default.", ANY_ROWS, "sentences"
    )
    flow_epochs: float = evaluation_key(1.0, "Passes over these sentences.", "(0, 100_000]", "epochs")
    flow_learning_rate: float = evaluation_key(1e-3, "Learning rate of the flow.", "[0, 100]")
    flow_start: str = evaluation_key(
        "data",
        "First weights of the flow's norms: `data` makes every feature of the first vectors normal, as in Glow. "
        "`random` draws them, as BERT-flow's release does: its step that reads the data never runs.",
        ("data", "random"),
    )
    flow_dropout: bool = evaluation_key(
        False, "Fit the flow to vectors that are encoded with the encoder's dropout, as BERT-flow's release does."
    )
    flow_optimizer: str = evaluation_key(
        "adam",
        "`adam`, in batches of 32 vectors; or `released`: that of BERT-flow's release, Adam without bias correction, "
        "with weight decay 0.01, epsilon 1e-6 and clipping to norm 1, in batches of 32 pairs.",
        ("adam", "released"),
    )

    mixed_precision: str | None = memory_key(
        None,
        "`auto` measures whether `no` or `bf16` is faster here. By default the setting of `accelerate launch`.",
        ("no", "fp16", "bf16", "auto"),
    )
    attn_implementation: str | None = memory_key(
        None, "Attention implementation of transformers, such as `sdpa` or `eager`; null lets transformers choose."
    )
    gradient_checkpointing: bool = memory_key(False, "Compute activations twice to save memory.")
    padded: bool = memory_key(
        False,
        "Compute the padding of batches too. Dropout is then drawn for it, which changes what the words draw; without "
        "dropout no number differs.",
    )

    seeds: list[int] = run_key(
        [42],
        "One run for each seed. The results have the mean and standard deviation of several seeds. A run keeps the "
        "seeds that it has.",
        SEED,
    )
    output_dir: str | None = run_key(None, "Directory of the run; `runs/NAME` by default.")
    overwrite: bool = run_key(False, "Delete what another recipe left in `output_dir`.")
    force: bool = run_key(
        False, "Resume a run although its recipe, data, models, code or launch has changed since it began."
    )
    show_sentences: bool = run_key(
        False,
        "Let the card show sentences of `dev_file` and `test_file`. Without it, a card shows sentences of public test "
        "sets only.",
    )
    log_steps: int = run_key(25, "Updates between two logged losses.", UPDATES, "updates")
    report_to: str = run_key("tensorboard", "A tracker of accelerate, or `none`.")
    name: str = run_key("", "Name of the run, its card and its default directory; by default the recipe's name.")
    license: str = run_key("apache-2.0", "License of the published weights, for the model card.")
    language: str = run_key("en", "Language of the published weights, for the model card.")

    # The recipe that the run was started from, by name or file name; filled in when it is read.
    recipe: str | None = None
    model: dict = field(default_factory=dict)
    # The keys that were set, by the recipe's file or the command line: the others have defaults.
    given: frozenset[str] = field(default=frozenset(), compare=False)

    def __post_init__(self):
        # os.path, because Path raises for a name that is too long.
        for key in ("base_model", "dataset", "nli_dataset"):
            place = getattr(self, key)
            if place and place[0] not in PATH and os.path.isdir(place):
                setattr(self, key, f"./{place}")
        for name, declared in recipe_keys().items():
            refuse_disallowed(name, getattr(self, name), declared)
        self._refuse_contradictions()

    def _refuse_contradictions(self) -> None:
        if self.nli_steps and self.nli_epochs:
            raise UserError("nli_steps and nli_epochs: give only one of them")
        if self.soup and self.eval_data == "none" and not self.dev_file:
            raise UserError("soup: the best weights are chosen by their dev scores; give --dev_file or --eval_data")
        if self.soup and self.select_by == LAST:
            raise UserError("soup: the best weights are chosen by their dev scores; give another --select_by")
        if self.select_by not in ("sts-dev", LAST) and (self.dev_file or self.eval_data == "none"):
            raise UserError(f"select_by: {self.select_by} reads --eval_data; give it, and no --dev_file")
        if self.streaming and self.max_steps is None:
            raise UserError("streaming: the length of a stream is unknown; give --max_steps too")
        if self.stream_shards and not self.streaming:
            raise UserError("stream_shards: only a stream has shards; give --streaming too, or leave it out")
        if self.stream_shards and self.max_train_sentences:
            raise UserError("stream_shards: the first rows are of the first shards; leave out max_train_sentences")
        if self.streaming and self.dataset in (STSB_SENTENCES, STS_SENTENCES) and not self.train_file:
            raise UserError(f"streaming: {self.dataset} cannot be streamed; leave it out")
        if self.streaming and (self.num_workers or 0) > 1:  # each would read the complete stream
            raise UserError("num_workers: one process reads a stream; give 0 or 1")
        if self.streaming and self.train_fraction < 1:
            raise UserError("train_fraction: a stream cannot be sampled; give --max_train_sentences instead")
        for name in ("whitening", "flow"):
            if getattr(self, name) and not (self.train_file or self.dataset):
                raise UserError(f"{name}: it is fitted on training sentences; give --train_file or --dataset")
            if getattr(self, name) and self.model.get("matryoshka_dims"):
                raise UserError(f"matryoshka_dims: {name} makes other dimensions after training; leave one out")
        if self.flow and self.whitening:
            raise UserError("flow and whitening: give only one of them")
        if bool(self.teachers) != bool(self.model.get("rank_weight")):
            raise UserError("teachers and rank_weight belong together; give both or neither")
        if self.teachers and len(self.teachers) > 2:
            raise UserError(f"teachers: expected one or two directories, got {len(self.teachers)}")
        if self.teachers and BASE_TEACHER in self.teachers and (len(self.teachers) > 1 or self.num_workers):
            raise UserError(
                f"teachers: {BASE_TEACHER} is the only teacher, and encodes in the training process; give "
                "no other one, and --num_workers 0"
            )
        if self.teachers and self.streaming:
            raise UserError("streaming: the sentences of a stream cannot be matched to teachers; leave it out")
        if self.lr_scheduler == "constant" and self.warmup_ratio:
            raise UserError("warmup_ratio: constant has no warm-up; give --lr_scheduler constant_with_warmup, or 0")
        if self.lr_scheduler == "stepped" and self.warmup_ratio:
            raise UserError("warmup_ratio: stepped has no warm-up; give another --lr_scheduler, or 0")
        boundaries, factors = self.lr_boundaries or [], self.lr_factors or []
        if (self.lr_scheduler == "stepped") != bool(boundaries) or len(boundaries) != len(factors):
            raise UserError(
                "lr_boundaries and lr_factors belong to lr_scheduler stepped: give both, with as many numbers, or "
                "neither"
            )
        if boundaries != sorted(set(boundaries)):
            raise UserError(f"lr_boundaries: {boundaries} must rise")
        for name in ("learning_rate", "nli_learning_rate"):
            rate = getattr(self, name)
            if self.lr_scheduler == "polynomial" and rate is not None and rate <= POLYNOMIAL_END:
                raise UserError(
                    f"{name}: polynomial falls to {POLYNOMIAL_END}, got {rate}; give more, or another --lr_scheduler"
                )
        if len(self.adam_betas) != 2:
            raise UserError(f"adam_betas: {self.adam_betas} must be two numbers")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise UserError(f"seeds: {self.seeds} must be one or more different numbers")

    @property
    def reads_labelled_pairs(self) -> bool:
        """Whether a stage of its own or a part of the loss is of labelled pairs."""
        return bool(self.nli_steps or self.nli_epochs or self.model.get("nli_weight"))

    @property
    def tells_length(self) -> bool:
        """Whether the length of training is known: a recipe without a base model may leave it to that model."""
        return bool(self.base_model) or "max_length" in self.given or self.recipe in QUICKSTARTS

    def to_dict(self) -> dict:
        """Return all keys in one flat mapping, as in `recipe.yaml`."""
        flat = asdict(self)
        model = flat.pop("model")
        del flat["given"]
        return {**flat, **model}


def refuse_disallowed(name: str, value: object, declared: Key) -> None:
    """Refuse a value that its key does not allow, or a list with such an item."""
    # The package imports torch, which --help can do without.
    from csezoo.modeling.contrastive.allowed_values import check_value

    with as_user_error():
        for item in value if isinstance(value, list) else [value]:
            if declared.allowed and item is not None:
                check_value(name, item, declared.allowed)


@cache
def recipe_keys() -> dict[str, Key]:
    """Return the keys that every recipe has, whatever its method."""
    hints = typing.get_type_hints(Recipe)
    declared = {field.name: field.metadata["key"] for field in fields(Recipe) if field.metadata}
    return {name: key._replace(hint=hints[name]) for name, key in declared.items()}
