"""Any method as a loss for `SentenceTransformerTrainer`."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F
from accelerate.utils import is_compiled_module, parse_flag_from_env
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from csezoo.modeling import SentenceEncoderConfig
from csezoo.modeling.contrastive.backbones import longest_input
from csezoo.modeling.contrastive.distributed import apart, world_size
from csezoo.modeling.contrastive.sentence_encoder import SentenceEncoderModel

from ..cards.method_texts import method_entries
from ..data.collation import ViewCollator, tokenize
from ..errors import UserError, as_user_error
from ..loading.served_encoder import given_prompts
from ..loading.templates import own_ends, serving_tokenizer
from .binding import ReadsModules, complete_size, parts_of, plain_pooling, run_inside, training_model, unwrapped
from .parts import LossParts, Stages, changes_after_updates, draws, refuse_labelled, small_weights

logger = logging.getLogger(__name__)
SHARDED = {"ACCELERATE_USE_FSDP": "FSDP", "ACCELERATE_USE_DEEPSPEED": "DeepSpeed"}  # launchers and trainers set them


class ZooLoss(nn.Module):
    """A method of the zoo, or several combined, as a loss for a SentenceTransformer.

    The loss has a training model of the zoo around the model's own encoder. Heads, twins and discriminators belong to
    the loss: the trainer's optimizer trains them, and `model.save()` leaves them out. Pooling and `Normalize` are the
    model's own; prompts are those of the trainer's arguments. In several processes the gradients of the heads are
    averaged as those of the encoder are.

    Args:
        model: a SentenceTransformer of a Transformer and a Pooling; Dense, Dropout, LayerNorm and Normalize may
            follow. PEFT adapters on it are trained as they are.
        method: a method, or several joined by `+`, such as `l2pcsr+diffcse`.
        generator: the masked language model that DiffCSE needs: a Hub id, a directory or a model, with the encoder's
            tokenizer.
        stage: `contrastive`, or `nli` to train on labelled pairs alone. `begin_stage` changes it.
        mini_batch_size: sentences to encode at a time, for batches that are too large for the memory. It costs a
            second forward pass, and the gradient is that of the complete batch.
        gather_across_devices: whether the sentences of all processes are each other's negatives, as in the zoo's own
            loop. Losses of sentence-transformers have false by default.
        keys: of the method's configuration, such as `temperature`; see `csezoo train METHOD --help`.

    Raises:
        UserError: a key is unknown, or the model does not fit the method.
        ValueError: two methods cannot be combined, or two values contradict each other.

    References:
        - Gao, Yao, Chen 2021, "SimCSE", and the paper of each method.

    Requirements:
        1. Dropout in the encoder, if the views of a sentence are to differ by it.

    Inputs:
        +--------------------------------------------+-------------------------+
        | Inputs                                     | Labels                  |
        +============================================+=========================+
        | sentences                                  | none                    |
        +--------------------------------------------+-------------------------+
        | (anchor, positive) pairs                   | none                    |
        +--------------------------------------------+-------------------------+
        | (anchor, positive, negative) triplets      | none                    |
        +--------------------------------------------+-------------------------+
        | stage nli: (premise, hypothesis) pairs     | 0 contradicts, 1 follows|
        +--------------------------------------------+-------------------------+
        | stage nli: (premise, follows, contradicts) | none                    |
        +--------------------------------------------+-------------------------+

    Relations:
        - With `method="simcse", projection="none"` it is `MultipleNegativesRankingLoss` with `scale=20`.
        - `MatryoshkaLoss(model, ZooLoss(model))` trains the widths as the key `matryoshka_dims` does: the encoder runs
          once, and auxiliary losses read the complete vectors alone.

    Example:
        >>> model = SentenceTransformer("sentence-transformers/all-MiniLM-L6-v2")
        >>> loss = ZooLoss(model, "l2pcsr", temperature=0.1)
        >>> features = [model.preprocess(["A cat sees a dog.", "It rains."])]
        >>> loss(features).dim()
        0
        >>> loss.get_config_dict()
        {'method': 'l2pcsr', 'temperature': 0.1, 'gather_across_devices': True}
    """

    # `MatryoshkaLoss` then hands its widths to `calculate_loss`, and calls this loss once.
    uses_gradient_cache = True

    def __init__(
        self,
        model: SentenceTransformer,
        method: str = "simcse",
        *,
        generator: str | PreTrainedModel | None = None,
        stage: str = "contrastive",
        mini_batch_size: int | None = None,
        gather_across_devices: bool = True,
        **keys: Any,
    ):
        super().__init__()
        self.model = model
        self.trained = training_model(model, method, keys, generator)
        config = self.trained.config
        if mini_batch_size and config.reason_for_whole_batch:
            raise UserError(f"mini_batch_size: {config.reason_for_whole_batch}; leave it out")
        self.trained.mini_batch_size = mini_batch_size
        self.method, self.keys, self.gathers = method, keys, gather_across_devices
        self.size = complete_size(model)
        self.bound = (model,)  # in a tuple, because a trainer replaces `model` by its wrapper
        self.stages = Stages()
        self.parts, self.eval_parts = LossParts(), LossParts()
        own = {id(parameter) for parameter in model.parameters()}
        heads = [parameter for parameter in self.trained.parameters() if id(parameter) not in own]
        self.averaged = [parameter for parameter in heads if parameter.requires_grad]
        self.average_gradients()
        self.begin_stage(stage)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.average_gradients()  # a copy of a parameter has no hooks

    def average_gradients(self) -> None:
        """Average the gradients of the heads over the processes, because a trainer wraps the model alone."""
        for parameter in self.averaged:
            trains = parameter.requires_grad  # a stage freezes some
            parameter.requires_grad_().register_hook(mean_over_processes)
            parameter.requires_grad_(trains)

    def begin_stage(self, stage: str) -> None:
        """Begin a stage, `nli` or `contrastive`, before a trainer is made for it."""
        self.called_back = False  # by a `TrainingCallback`, which calls `after_update` and saves the heads
        self.begun_with: torch.Tensor | None = small_weights(self.bound[0])
        self.stages.freeze(self.trained, stage)
        self.trained.begin_stage(stage)

    def forward(
        self, sentence_features: Iterable[dict[str, torch.Tensor]], labels: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Compute the loss of a batch.

        Args:
            sentence_features: what `model.preprocess` makes of each column.
            labels: `(B,)`, in stage `nli`.

        Raises:
            UserError: the batch or the trainer's settings do not fit the method.
        """
        model, trained = unwrapped(self.model), self.trained
        layers = (module for module in model.modules() if isinstance(module, GradientCheckpointingLayer))
        checkpoints = any(layer.gradient_checkpointing for layer in layers)
        self.refuse_misuse(model, checkpoints)
        self.warn_of_new_heads(model)
        if trained.training != model.training:
            trained.train(model.training)
        batch = self.batch([*sentence_features], labels)

        def forward() -> dict[str, Any]:
            with nullcontext() if self.gathers else apart(), self.widths():
                output = trained(**batch)
            return {"loss": output.loss, "losses": output.losses}

        settings = parts_of(model)[0].config
        attention = settings._attn_implementation
        try:
            output = run_inside(self.model, forward)
        finally:
            if not checkpoints:  # checkpointed layers run again; other programs do not have our attention
                settings._attn_implementation = attention
        if model.training:
            self.parts.add(output["losses"])
        else:
            self.eval_parts.add(output["losses"], len(next(iter(batch.values()))))
        return output["loss"]

    def refuse_misuse(self, model: SentenceTransformer, checkpoints: bool) -> None:
        """Refuse what would train something else in silence."""
        if is_compiled_module(self.model):
            raise UserError("torch_compile: the losses cannot train a compiled model; set it to False")
        if model is not self.bound[0]:
            raise UserError(
                "model: the trainer trains another model than the loss was made for; give it a function, "
                f"loss=lambda model: {type(self).__name__}(model)"
            )
        for variable, kind in SHARDED.items():
            if parse_flag_from_env(variable):
                raise UserError(
                    f"{kind}: the losses cannot train a sharded model; train without it, or with csezoo.training.train"
                )
        if checkpoints and not self.trained.supports_gradient_checkpointing:
            raise UserError(f"gradient_checkpointing: {self.method} does not support it; set it to False")
        if model.training and changes_after_updates(self.trained) and not self.called_back:
            raise UserError(
                f"{self.method}: its state changes after each step; give callbacks=[TrainingCallback(loss)]"
            )

    def warn_of_new_heads(self, model: SentenceTransformer) -> None:
        """Warn at the first step of a resumed training: the trainer has loaded the encoder since, but no heads."""
        if self.begun_with is None or not model.training:
            return
        now, begun, self.begun_with = small_weights(model), self.begun_with, None
        self.check_prompts(model)
        if not any(parameter.requires_grad for parameter in model.parameters()):
            logger.warning(
                "%s: the encoder is frozen, so the loss trains its heads alone; if a loss in stage nli has frozen it, "
                "begin the stages one after the other",
                self.method,
            )
        if self.heads() and not self.called_back and not torch.equal(begun.to(now.dtype), now):
            logger.warning(
                "%s: the encoder was loaded after the loss was made, and the heads of the loss are new; to resume a "
                "training, give callbacks=[TrainingCallback(loss)] from its beginning",
                self.method,
            )

    def check_prompts(self, model: SentenceTransformer) -> None:
        """Warn if a trainer leaves out the prompt that `encode` adds. The model's card has the trainer's arguments."""
        prompt = model.prompts.get(model.default_prompt_name or "")
        arguments = model.model_card_data.all_hyperparameters
        given = arguments and arguments.get("prompts")
        if (given or (prompt and arguments)) and self.trained.config.text_prefixes([], parts_of(model)[1]):
            raise UserError(
                f"prompts: {self.method} puts a prefix between prompt and text, and a trainer gives it both as one "
                "text; train with csezoo.training.train"
            )
        if prompt and arguments and not given:
            logger.warning(
                "prompts: the model puts %r before each text that it encodes, and the trainer does not; give "
                "prompts=%r to SentenceTransformerTrainingArguments",
                prompt,
                prompt,
            )

    def batch(self, features: Sequence[dict[str, Any]], labels: torch.Tensor | None) -> dict[str, Any]:
        """Return the arguments of the training model's forward, `(B, V, T)` each."""
        if parts_of(self.bound[0])[1].padding_side != "right":
            raise UserError("model: its tokenizer pads on the left; set model.tokenizer.padding_side = 'right'")
        if any("cu_seq_lens_q" in column or "input_ids" not in column for column in features):
            raise UserError("model: the loss needs padded token ids; set model[0].unpad_inputs = False")
        prompts = {
            int(torch.as_tensor(column["prompt_length"]).flatten()[0])
            for column in features
            if "prompt_length" in column
        }
        if isinstance(self.trained.model, ReadsModules):
            if len(prompts) > 1:
                raise UserError("prompts: a pooling that leaves out the prompt needs prompts of the same length")
            self.trained.model.prompt_length = next(iter(prompts), None)
            if prompts and self._rewrites(len(features)):
                raise UserError("prompts: the pooling leaves them out, and the method edits texts; set include_prompt")
        config = cast(SentenceEncoderConfig, self.trained.config)
        longest = max(column["input_ids"].shape[1] for column in features)
        ids, mask = (
            torch.stack(
                [F.pad(column[name], (0, longest - column[name].shape[1]), value=fill) for column in features], 1
            )
            for name, fill in (("input_ids", config.backbone_config.pad_token_id), ("attention_mask", 0))
        )
        if self.stages.begun == "nli":
            refuse_labelled(config, len(features), None if labels is None else labels.tolist())
            return {"nli_input_ids": ids, "nli_attention_mask": mask, "nli_labels": labels}
        if self._rewrites(len(features)):
            return self._rewritten(ids, mask)
        with as_user_error():
            views = config.view_columns(len(features))
        return {"input_ids": ids[:, views], "attention_mask": mask[:, views]}

    def _rewrites(self, columns: int) -> bool:
        """Return whether the method makes the texts of the views itself, by prefixes or edits."""
        config, tokenizer = self.trained.config, parts_of(self.bound[0])[1]
        prefixed = columns == 1 and bool(config.text_prefixes([], tokenizer))
        return prefixed or config.edit_sentence is not None

    def _pools_one_token(self) -> bool:
        """Return whether a pooling reads the first or the last token, which must keep its place."""
        modes = [module.pooling_mode for module in parts_of(self.bound[0])[2] if isinstance(module, Pooling)]
        return any({"cls", "lasttoken"} & ({mode} if isinstance(mode, str) else {*mode}) for mode in modes)

    def _rewritten(self, ids: torch.Tensor, mask: torch.Tensor) -> dict[str, Any]:
        """Return the views of texts with prefixes or edits, as the zoo's own collator makes them.

        A prefix depends on the words of a text, which is therefore decoded.
        """
        config, tokenizer = cast(SentenceEncoderConfig, self.trained.config), parts_of(self.bound[0])[1]
        before, after = own_ends(tokenizer)
        rows = [
            {
                str(n): row[real.bool()].tolist()[len(before) : -len(after) or None]
                for n, (row, real) in enumerate(both)
            }
            for both in (zip(*pair, strict=True) for pair in zip(ids.cpu(), mask.cpu(), strict=True))
        ]
        if config.text_prefixes([], tokenizer):
            texts = [tokenizer.decode(row["0"], clean_up_tokenization_spaces=True) for row in rows]
            longest = self.bound[0].max_seq_length or longest_input(parts_of(self.bound[0])[0])
            views = tokenize({"0": texts}, tokenizer, longest - len(before) - len(after), config)
            rows = [dict(zip(views, row, strict=True)) for row in zip(*views.values(), strict=True)]
        pad = config.backbone_config.pad_token_id
        batch = ViewCollator(
            [(before, after)],
            pad,
            config.view_columns,
            config.edit_sentence,
            edits_special_tokens=config.edits_special_tokens and not self._pools_one_token(),
        )(rows, draws(len(rows)) if config.edit_sentence and self.trained.training else ())
        return {name: tensor.to(ids.device) for name, tensor in batch.items()}

    def calculate_loss(self, vectors: list[list[torch.Tensor]]) -> torch.Tensor:
        """Return the weight of each width, `(H + 1,)`: 1 for that of the vectors, 0 for all others.

        `MatryoshkaLoss` replaces this by the weighted sum over its widths.
        """
        width, size = vectors[0][0].shape[-1], self.size
        return F.one_hot(torch.tensor(width), size + 1).double()

    @contextmanager
    def widths(self) -> Iterator[None]:
        """Train the widths of a `MatryoshkaLoss` around this loss inside the context."""
        config, size = self.trained.config, self.size
        with torch.no_grad():
            weights = self.calculate_loss([[torch.ones(1, size)]])
        kept = {
            name: getattr(config, name) for name in ("matryoshka_dims", "matryoshka_weights", "contrastive_weight")
        }
        dims = [dim for dim in weights.nonzero().flatten().tolist() if dim < size]
        if dims:
            config.matryoshka_dims = dims
            config.matryoshka_weights = [config.contrastive_weight * float(weights[dim]) for dim in dims]
        config.contrastive_weight *= float(weights[size])
        try:
            yield
        finally:
            for name, value in kept.items():
                setattr(config, name, value)

    def heads(self) -> dict[str, torch.Tensor]:
        """Return what a checkpoint needs beside the encoder: everything but the frozen generator."""
        state = self.trained.state_dict()
        kept = [name for name in state if not name.startswith(("model.backbone.", "generator."))]
        return {name: state[name].contiguous() for name in kept}

    def load_heads(self, heads: dict[str, torch.Tensor]) -> None:
        """Load what `heads` has returned."""
        self.trained.load_state_dict(heads, strict=False)

    def save_pretrained(self, directory: str | Path) -> None:
        """Write the published repository of the zoo, with what `model.save()` leaves out (prefixes, LoRA, adapters).

        Raises:
            UserError: it cannot have the model's pooling, its Dense modules or its adapter.
        """
        model = self.bound[0]
        _, tokenizer, after = parts_of(model)
        if plain_pooling(after) is None:
            raise UserError("model: a repository of the zoo has one pooling after the encoder; use model.save()")
        serving = self.trained.serving_model()
        serve_as(serving, model)
        longest = model.max_seq_length or tokenizer.model_max_length
        serving.tokenizer = serving_tokenizer(tokenizer, own_ends(tokenizer), max_length=longest)
        with as_user_error():
            serving.save_pretrained(directory)

    def get_config_dict(self) -> dict[str, Any]:
        """Return the settings, for the card."""
        config = self.trained.config
        others: dict[str, Any] = {"generator": config.generator_config.name_or_path} if config.needs_generator else {}
        others |= {"stage": "nli"} if self.stages.begun == "nli" else {}
        others |= {"mini_batch_size": self.trained.mini_batch_size} if self.trained.mini_batch_size else {}
        settings = {"method": self.method, "temperature": config.temperature, **self.keys, **others}
        return {**settings, "gather_across_devices": self.gathers}

    @property
    def citation(self) -> str:
        """The BibTeX entries of the methods, for the card."""
        entries = method_entries()
        return "\n".join(entries[name]["citation"] for name in self.method.split("+") if name in entries)


def serve_as(serving: SentenceEncoderModel, model: SentenceTransformer) -> None:
    """Let an encoder of the zoo serve as a SentenceTransformer does: its Normalize, prompts, similarity and length."""
    config = serving.config
    config.normalize = any(isinstance(module, Normalize) for module in model.children())
    prompts = {name: text or "" for name, text in model.prompts.items()}
    config.named_prompts = given_prompts(prompts, model.default_prompt_name)
    config.default_prompt_name, config.truncate_dim = model.default_prompt_name, model.truncate_dim
    config.similarity = str(model.similarity_fn_name or "cosine")
    serving.named_prompts, serving.default_prompt_name = config.named_prompts or {}, config.default_prompt_name
    serving.similarity_fn_name = config.similarity


def mean_over_processes(gradient: torch.Tensor) -> torch.Tensor:
    """Return the mean of a gradient over all processes."""
    if world_size() == 1:
        return gradient
    gradient = gradient / world_size()
    dist.all_reduce(gradient)
    return gradient
