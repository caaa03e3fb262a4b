"""Fine-tune an encoder on GLUE, to measure it as a starting point for further training.

L2P-CSR (table 4) reports WNLI, QNLI, QQP, SST-2 and STS-B; SG-OPT (table 10) reports QNLI, SST-2, CoLA, MRPC and RTE.
Both compare their encoder with the BERT it was trained from. Neither says how it was fine-tuned.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.processors import BertProcessing, RobertaProcessing
from transformers import (
    AutoModelForSequenceClassification,
    BatchEncoding,
    DataCollatorWithPadding,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PrinterCallback,
    ProgressCallback,
    Trainer,
    TrainingArguments,
    set_seed,
)

from csezoo.modeling.contrastive.backbones import longest_input

from ...environment import default_device, versions
from ...errors import UserError
from ...loading.backbones import load_backbone
from ...loading.tokenizers import load_tokenizer
from ..encoders import is_published, model_receipt
from ..results import ResultsFile
from ..tasks.transfer import Example
from .data import TASKS, GlueTask, load_glue_task


def _defined(correlation: float) -> float:
    """Return a correlation, or 0 if all predictions are equal, as `matthews_corrcoef` does."""
    return float(np.nan_to_num(correlation))


METRICS = {
    "accuracy": accuracy_score,
    "f1": f1_score,
    "matthews": matthews_corrcoef,
    "pearson": lambda labels, scores: _defined(pearsonr(labels, scores).statistic),
    "spearman": lambda labels, scores: _defined(spearmanr(labels, scores).statistic),
}


@dataclass(frozen=True)
class FineTuning:
    """The settings of fine-tuning. The defaults are within BERT's grid for GLUE (Devlin et al. 2019, section 4.1).

    Raises:
        UserError: a value is out of range.
    """

    learning_rate: float = 2e-5  # of AdamW, falling linearly to 0
    epochs: float = 3  # over the training set
    batch_size: int = 32  # examples per update and device
    max_length: int = 128  # maximum number of word pieces of an example
    # the share of the dev set, from its first row, that chooses the epoch; the other rows test it. SG-OPT uses
    # 0.1. With 0, the last epoch is tested on all rows.
    dev_share: float = 0.0

    def __post_init__(self):
        for name, value in asdict(self).items():
            if not 0 < value < math.inf and name != "dev_share":
                raise UserError(f"{name}: {value} must be above 0")
        if self.max_length < 8:
            raise UserError(
                f"max_length: {self.max_length} leaves no room for two texts and their special tokens; give at least 8"
            )
        if not 0 <= self.dev_share < 1:
            raise UserError(f"dev_share: {self.dev_share} must be at least 0 and below 1")


def classifier(model: str, classes: int) -> PreTrainedModel:
    """Put a new classification head on an encoder. New weights are drawn with torch's random state."""
    backbone = load_backbone(model, dtype=torch.float32)
    backbone.config.num_labels, backbone.config.problem_type = classes, None  # a base may be of another problem
    try:
        network = AutoModelForSequenceClassification.from_config(backbone.config)
    except ValueError as error:
        raise UserError(
            f"{model}: transformers has no classifier for {backbone.config.model_type}; give another model"
        ) from error
    # Not strict, because of the pooler: BERT's classifier has one, the zoo's backbones have none.
    network.base_model.load_state_dict(backbone.state_dict(), strict=False)
    return network


def pair_tokenizer(model: str, config: PretrainedConfig) -> PreTrainedTokenizerBase:
    """Load a tokenizer that puts the special tokens of the backbone's family around one text or two.

    The tokenizer of a checkpoint of the zoo is for single sentences, inside a prompt if the model has one. Here it
    gets [CLS] and [SEP] instead, by whatever name.
    """
    tokenizer = load_tokenizer(model)
    if is_published(model):
        special_tokens = ((tokenizer.sep_token, tokenizer.sep_token_id), (tokenizer.cls_token, tokenizer.cls_token_id))
        if None in (tokenizer.sep_token, tokenizer.cls_token):
            raise UserError(f"{model}: its tokenizer has no tokens before and between texts; give an encoder")
        backend = tokenizer.backend_tokenizer
        # RoBERTa and its relatives call the token </s>, and put it twice between two texts.
        doubled = tokenizer.sep_token == "</s>"
        backend.post_processor = (RobertaProcessing if doubled else BertProcessing)(*special_tokens)
        if isinstance(backend.pre_tokenizer, ByteLevel):  # inside a prompt, a space precedes the first word
            backend.pre_tokenizer = ByteLevel(add_prefix_space=False)
        if not doubled and config.to_dict().get("type_vocab_size", 0) > 1:
            tokenizer.model_input_names = [*tokenizer.model_input_names, "token_type_ids"]
    return tokenizer


def tokenize_examples(
    examples: Sequence[Example], tokenizer: PreTrainedTokenizerBase, max_length: int
) -> datasets.Dataset:
    """Tokenize examples and keep their labels. Of two texts, the longer one is truncated first."""
    texts, labels = zip(*examples, strict=True)
    sides = {str(side): [each[side] for each in texts] for side in range(len(texts[0]))}

    def encode(batch: dict[str, list[str]]) -> BatchEncoding:
        return tokenizer(*(batch[side] for side in sides), truncation=True, max_length=max_length)

    rows = datasets.Dataset.from_dict({**sides, "label": list(labels)})
    return rows.map(encode, batched=True, remove_columns=list(sides), desc="Tokenising")


def measure(name: str, logits: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Return the metrics of a task, times 100, from its logits `(n, classes)` and labels `(n,)`.

    Raises:
        UserError: a logit is not finite.

    Example:
        >>> measure("MRPC", np.array([[0.0, 1.0], [0.0, 1.0], [1.0, 0.0]]), np.array([1, 0, 0]))["f1"]
        66.66666666666666
    """
    if not np.isfinite(logits).all():
        raise UserError(
            f"{name}: the fine-tuned model returns values that are not finite; check the weights, or lower "
            "--learning_rate"
        )
    guesses = logits.argmax(1) if TASKS[name].labels else logits[:, 0]
    return {metric: 100 * float(METRICS[metric](labels, guesses)) for metric in TASKS[name].metrics}


class _Bars(ProgressCallback):
    """Progress bars that print no numbers, because the results contain them."""

    def on_log(self, *_: Any, **__: Any) -> None:
        pass


def finetune(model: str, task: GlueTask, seed: int, settings: FineTuning, *, progress: bool = False) -> list[dict]:
    """Fine-tune on a task and score its dev set.

    Returns:
        A result for each metric, times 100, with its receipt (`receipt`).
    """
    set_seed(seed)
    network = classifier(model, len(TASKS[task.name].labels) or 1)
    tokenizer = pair_tokenizer(model, network.config)
    if tokenizer.pad_token_id is None:
        raise UserError(f"{model}: its tokenizer has no padding token; give an encoder")
    network.config.pad_token_id = tokenizer.pad_token_id  # a decoder finds the last token by it
    longest = min(settings.max_length, longest_input(network))
    train, *devs = (tokenize_examples(examples, tokenizer, longest) for examples in task.parts.values())
    chooser_rows = int(settings.dev_share * len(devs[0]))
    if settings.dev_share and not chooser_rows:
        raise UserError(
            f"dev_share: {settings.dev_share} of {len(devs[0])} examples selects none; give a larger share"
        )
    chooser, devs[0] = devs[0].select(range(chooser_rows)), devs[0].select(range(chooser_rows, len(devs[0])))
    when = "epoch" if chooser_rows else "no"
    with tempfile.TemporaryDirectory() as directory:
        trainer = Trainer(
            network,
            TrainingArguments(
                directory,
                learning_rate=settings.learning_rate,
                num_train_epochs=settings.epochs,
                per_device_train_batch_size=settings.batch_size,
                per_device_eval_batch_size=128,
                seed=seed,
                eval_strategy=when,
                save_strategy=when,
                save_only_model=True,
                dataloader_pin_memory=default_device().type == "cuda",
                save_total_limit=1,
                load_best_model_at_end=bool(chooser_rows),
                metric_for_best_model=TASKS[task.name].metrics[0],
                logging_strategy="no",
                report_to="none",
                disable_tqdm=True,
            ),
            data_collator=DataCollatorWithPadding(tokenizer),
            train_dataset=train,
            eval_dataset=chooser if chooser_rows else None,
            compute_metrics=lambda output: measure(
                task.name, np.asarray(output.predictions), np.asarray(output.label_ids)
            ),
        )
        trainer.remove_callback(PrinterCallback)
        if progress:
            trainer.add_callback(_Bars)
        trainer.train()
        scores = [trainer.evaluate(dev) for dev in devs]
    task_receipt = receipt(task, seed, settings)
    names = [f"GLUE {task.name}"] if len(devs) == 1 else [f"GLUE {task.name}-m", f"GLUE {task.name}-mm"]
    return [
        {"task": name, "metric": metric, "value": score[f"eval_{metric}"], "tested": len(dev), **task_receipt}
        for name, score, dev in zip(names, scores, devs, strict=True)
        for metric in TASKS[task.name].metrics
    ]


def receipt(task: GlueTask, seed: int, settings: FineTuning) -> dict[str, Any]:
    """Return what a result depends on beside the model: data, seed, settings, library versions."""
    return {**task.receipt(), "seed": seed, **asdict(settings), "dtype": "float32", "versions": versions()}


def run_glue(
    model: str,
    names: Sequence[str],
    data: str = "hub",
    *,
    seeds: Sequence[int] = (42,),
    settings: FineTuning,
    out: str | Path | None = None,
    progress: bool = False,
) -> list[dict]:
    """Fine-tune on every task with every seed.

    Args:
        model: directory or Hub id, of the zoo or of transformers.
        out: a results file of the model, new or existing. The results of each run are added to it. A run with the same
            receipt is read from it instead of done again.

    Returns:
        A result for each task, seed and metric, times 100, with its receipt.

    Raises:
        UserError: as for `load_glue_task`, `finetune` and `ResultsFile`, or a seed is out of range. What can be
            checked is checked before the first run.
    """
    if wrong := [seed for seed in seeds if not 0 <= seed < 2**32]:
        raise UserError(f"seeds: {wrong[0]} must be at least 0 and below 2**32")
    if not progress:
        datasets.disable_progress_bars()
    tasks = [load_glue_task(name, data) for name in dict.fromkeys(names)]
    load_backbone(model)  # a model that cannot be loaded is refused before the work
    model_part = model_receipt(model)
    file = ResultsFile(out, model, str(model_part["model_sha256"])) if out else None
    results = []
    for task in tasks:
        for seed in dict.fromkeys(seeds):
            key = {**receipt(task, seed, settings), **model_part}
            rows = file.find(key) if file else []
            if not rows:
                rows = [
                    {**result, **model_part} for result in finetune(model, task, seed, settings, progress=progress)
                ]
                if file:
                    rows = file.add(rows, key)
            results += rows
    return results
