"""Embed lists of texts: what the published class and the models in training have in common."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.utils import logging

from .pooling_csezoo import OTHER_LAYER, BackboneOutput, check_mask_token, check_right_padding, pool, pool_mask_token
from .quantization_csezoo import check_precision, quantize_embeddings

# Most tokens in a forward pass, with padding. On a CPU, larger passes do not fit its caches: BERT-base on one thread
# takes up to twice as long. An accelerator needs large passes: as many tokens as `batch_size` texts of 128 tokens.
CPU_BATCH_TOKENS = 1024
TOKENS_PER_TEXT = 128
TOKENISED_AT_ONCE = 1000  # a tokenizer's output also has pieces and offsets, too much for a million texts
OUTPUT_VALUES = ("sentence_embedding", "token_embeddings")
# Of all rows of two tables of vectors, by the names of sentence-transformers.
SIMILARITIES = {
    "cosine": lambda left, right: F.normalize(left, dim=1) @ F.normalize(right, dim=1).T,
    "dot": lambda left, right: left @ right.T,
    "euclidean": lambda left, right: -torch.cdist(left, right),
    "manhattan": lambda left, right: -torch.cdist(left, right, p=1.0),
}
LOCK = RLock()  # of the mode and the tokenizers of all models

Batches = Iterator[tuple[slice, dict[str, torch.Tensor]]]


class EncodesTexts(PreTrainedModel):
    """A model that maps texts to vectors. Several threads may call `encode` at the same time."""

    tokenizer: PreTrainedTokenizerBase | None = None  # loaded and saved with the model
    # A copy for `encode`: a call of a tokenizer changes its truncation and padding, and others may call it too.
    _own_tokenizer: tuple[PreTrainedTokenizerBase, tuple, PreTrainedTokenizerBase] | None = None
    _encoding, _was_training = 0, False  # contexts of `evaluating`, and the mode before them
    named_prompts: dict[str, str] = {}  # texts that `encode` can put in front of a text
    default_prompt_name: str | None = None  # the one that it uses if it is told nothing
    similarity_fn_name = "cosine"  # what `similarity` computes
    causal = False  # whether a token sees only the tokens before it
    first_position = 0  # of a text: prefixes take the positions before it
    backbone: Any

    def get_input_embeddings(self) -> nn.Module:
        return self.backbone.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.backbone.set_input_embeddings(value)

    def encode(
        self,
        texts: str | list[str],
        tokenizer: PreTrainedTokenizerBase | None = None,
        *,
        batch_size: int = 32,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        precision: str = "float32",
        output_value: str = "sentence_embedding",
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: str | torch.device | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        show_progress_bar: bool = False,
    ) -> Any:  # an array or a tensor: this code does not import numpy
        """Embed texts in batches of similar length, without gradients.

        The options have the names and the meaning that they have in sentence-transformers; but token embeddings are
        those of the last layer, whatever the pooling reads. The tokenizer is copied at the first call: to change it,
        give another one.

        Args:
            texts: one string or a list of strings, of any length. They are truncated at the model's limit.
            tokenizer: the tokenizer saved with the model; that of the model by default.
            batch_size: largest number of texts in a forward pass. If texts are long, a pass has fewer: at most 1,024
                tokens with padding on a CPU, and at most 128 x `batch_size` tokens on other devices.
            normalize_embeddings: scale every vector to length 1, after it was truncated.
            truncate_dim: keep this many dimensions, the first ones; all by default. A model trained with
                `matryoshka_dims` or whitened has its best ones first.
            precision: `float32`, `int8`, `uint8`, `binary` or `ubinary`, see
                `quantization_csezoo.quantize_embeddings`. The ranges of `int8` and `uint8` are those of these texts.
            output_value: `token_embeddings` returns a tensor `(tokens, H)` for each text instead, special tokens
                included.
            convert_to_numpy: return a numpy array, on the CPU. Otherwise return a tensor on the model's device, with
                the model's dtype or that of `precision`.
            convert_to_tensor: return a tensor, whatever `convert_to_numpy` is.
            device: move the model to this device first.
            prompt_name: one of `named_prompts`, whose text is put in front of every text, or `query` or `document`;
                `default_prompt_name` by default, if the model has one.
            prompt: put this in front of every text instead, `""` for nothing. A template of the zoo (PromptBERT) is
                part of the tokenizer and always there.
            show_progress_bar: show a progress bar.

        Returns:
            `(len(texts), H)` in the order of the texts, or `(H,)` for a single text.

        Raises:
            TypeError, ValueError: a text or an option is not allowed, or a vector is not finite.

        Example:
            `model.encode(["A cat sits.", "A dog runs."], normalize_embeddings=True, truncate_dim=64)`
        """
        before = self.prompt_text(prompt_name) if prompt is None else prompt
        if batch_size < 1:
            raise ValueError(f"batch_size: {batch_size} must be at least 1")
        if truncate_dim is not None and truncate_dim < 1:
            raise ValueError(f"truncate_dim: {truncate_dim} must be at least 1")
        check_precision(precision)
        if output_value not in OUTPUT_VALUES:
            raise ValueError(f"output_value: {output_value!r} must be one of {', '.join(OUTPUT_VALUES)}")
        of_tokens = output_value == "token_embeddings"
        if of_tokens and (truncate_dim is not None or precision != "float32" or normalize_embeddings):
            raise ValueError(
                "output_value: token_embeddings are neither truncated, quantised nor normalised; leave out "
                "truncate_dim, precision and normalize_embeddings"
            )
        single = isinstance(texts, str)
        checked = [before + text for text in checked_texts([texts] if isinstance(texts, str) else texts)]
        if device is not None:
            self.to(device)  # type: ignore[arg-type]  # a decorator hides `self`
        own = self._tokenizer_for_encoding(tokenizer or self.own_tokenizer())
        token_ids = tokenize(own, checked)
        if of_tokens:
            tokens = self._token_vectors(token_ids, own.pad_token_id, batch_size, show_progress_bar)
            return tokens[0] if single else tokens
        embeddings = self.encode_token_ids(
            token_ids, own.pad_token_id, batch_size, truncate_dim=truncate_dim, show_progress_bar=show_progress_bar
        )
        embeddings = F.normalize(embeddings, dim=-1) if normalize_embeddings else embeddings
        embeddings = quantize_embeddings(embeddings, precision) if precision != "float32" else embeddings
        embeddings = embeddings[0] if single else embeddings
        if convert_to_tensor or not convert_to_numpy:
            return embeddings
        return (embeddings.float() if precision == "float32" else embeddings).cpu().numpy()

    def prompt_text(self, name: str | None = None) -> str:
        """Return the text of a prompt, by default of the default prompt; empty if the model has none.

        As in sentence-transformers, every model has `query` and `document`, which are empty if nothing else is said.
        """
        name = self.default_prompt_name if name is None else name
        known = {"query": "", "document": "", **self.named_prompts}
        if name is not None and name not in known:
            raise ValueError(f"prompt_name: {name!r:.60} is no prompt of this model, which has {', '.join(known)}")
        return "" if name is None else known[name]

    def similarity(self, embeddings1: Any, embeddings2: Any) -> torch.Tensor:
        """Return the similarities `(n, m)` of all pairs of embeddings, as `SentenceTransformer.similarity` does.

        They are cosines, unless the model was trained from an encoder that is served with another one.

        Args:
            embeddings1, embeddings2: arrays or tensors `(n, H)` and `(m, H)`, or `(H,)` for one embedding.

        Example:
            `model.similarity(model.encode(["A cat sits.", "A dog runs."]), model.encode("A cat sleeps."))`
        """
        left, right = (torch.atleast_2d(torch.as_tensor(each)).float() for each in (embeddings1, embeddings2))
        return SIMILARITIES[self.similarity_fn_name](left, right)

    def own_tokenizer(self) -> PreTrainedTokenizerBase:
        """Return the tokenizer that was loaded with the model, or set as `tokenizer`."""
        if self.tokenizer is None:
            raise ValueError("this model has no tokenizer; pass it: encode(texts, tokenizer)")
        return self.tokenizer

    def _tokenizer_for_encoding(self, tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
        state = (tokenizer.model_max_length, len(tokenizer), tokenizer.truncation_side)
        with LOCK:
            kept = self._own_tokenizer
            if kept is None or kept[0] is not tokenizer or kept[1] != state:
                kept = self._own_tokenizer = (tokenizer, state, copy.deepcopy(tokenizer))
        return kept[2]

    @property
    def embedding_size(self) -> int:
        """D, the length of a sentence embedding."""
        raise NotImplementedError

    @property
    def pooling(self) -> str:
        """How token vectors become one vector, see `pooling_csezoo.pool`, or `prompt`."""
        raise NotImplementedError

    @property
    def mask_token_id(self) -> int:
        """The token of the template whose vector `prompt` pooling reads."""
        raise NotImplementedError

    def check_tokens(self, input_ids: torch.Tensor | None, attention_mask: torch.Tensor) -> None:
        """Refuse tokens `(B, T)` whose vectors would be wrong.

        Raises:
            ValueError: a row is padded on the wrong side, or lacks a token that the pooling needs.
        """
        if not self.causal:
            check_right_padding(attention_mask)
        if self.pooling == "prompt" and input_ids is not None:
            check_mask_token(input_ids, self.mask_token_id)

    def positions(self, attention_mask: torch.Tensor) -> torch.Tensor:
        """Return positions that count from the first real token, so that either side may be padded."""
        return (attention_mask.long().cumsum(1) - 1).clamp(min=0) + self.first_position

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
        pooled_only: bool = False,
        checked: bool = False,
    ) -> BaseModelOutputWithPooling | tuple:
        """Encode a batch.

        Args:
            input_ids, attention_mask, token_type_ids, position_ids: `(B, T)`, from the tokenizer saved with the model,
                padded on the right. A causal model may also be padded on the left.
            inputs_embeds: `(B, T, H)`, instead of `input_ids`; not with `prompt` pooling.
            output_hidden_states, output_attentions, return_dict: as in every transformers encoder.
            pooled_only: nothing but the sentence embeddings is read, so that a model in training may leave out others.
            checked: the tokens were checked before, on the host. To read them from a device would wait for it.

        Returns:
            `pooler_output` `(B, D)`, the sentence embeddings; `last_hidden_state` `(B, T, H)`; `hidden_states` and
            `attentions` if requested.

        Raises:
            ValueError: a row of an encoder is padded on the left, or a row lacks the mask token that `prompt` pooling
                needs.
        """
        config = self.config
        states = config.output_hidden_states if output_hidden_states is None else output_hidden_states
        rows = input_ids if input_ids is not None else inputs_embeds
        if rows is None:
            raise ValueError("input_ids: not given; pass what the tokenizer returns")
        if attention_mask is None:
            attention_mask = torch.ones(rows.shape[:2], dtype=torch.long, device=rows.device)
        traced = torch.compiler.is_compiling() or torch.jit.is_tracing()  # a graph cannot raise an error
        if not (checked or traced):
            self.check_tokens(input_ids, attention_mask)
        outputs, pooled = self.encode_tokens(
            input_ids,
            attention_mask,
            output_hidden_states=bool(states),
            pooled_only=pooled_only,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            output_attentions=config.output_attentions if output_attentions is None else output_attentions,
        )
        result = BaseModelOutputWithPooling(
            last_hidden_state=outputs.last_hidden_state,
            pooler_output=self.map_vectors(pooled, input_ids, attention_mask)[:, : self.embedding_size],
            hidden_states=outputs.hidden_states if states else None,
            attentions=outputs.attentions,
        )
        named = config.return_dict if return_dict is None else return_dict
        return result if named else result.to_tuple()

    def encode_tokens(
        self,
        input_ids: torch.Tensor | None,
        attention_mask: torch.Tensor,
        *,
        output_hidden_states: bool = False,
        pooled_only: bool = False,
        **inputs: Any,
    ) -> tuple[BackboneOutput, torch.Tensor]:
        """Return the encoder's outputs for tokens `(B, T)`, which are not checked, and the pooled vectors `(B, H)`."""
        if self.causal and inputs.get("position_ids") is None:
            inputs["position_ids"] = self.positions(attention_mask)
        outputs = self.run_backbone(
            attention_mask,
            output_hidden_states=output_hidden_states or self.pooling in (*OTHER_LAYER, "wk"),
            **{name: value for name, value in {"input_ids": input_ids, **inputs}.items() if value is not None},
        )
        return outputs, self.pool_outputs(outputs, input_ids, attention_mask)

    def run_backbone(self, attention_mask: torch.Tensor, **inputs: Any) -> BackboneOutput:
        """Run the encoder on tokens `(B, T)`."""
        raise NotImplementedError

    def map_vectors(
        self, pooled: torch.Tensor, input_ids: torch.Tensor | None, attention_mask: torch.Tensor
    ) -> torch.Tensor:
        """Return the sentence embeddings that pooled vectors `(B, H)` become, before they are cut."""
        raise NotImplementedError

    def pool_outputs(
        self, outputs: BackboneOutput, input_ids: torch.Tensor | None, attention_mask: torch.Tensor
    ) -> torch.Tensor:
        """Return the pooled vectors `(B, H)` of the encoder's outputs for tokens `(B, T)`."""
        if self.pooling != "prompt":
            return pool(outputs.hidden_states or (outputs.last_hidden_state,), attention_mask, self.pooling)
        if input_ids is None:
            raise ValueError("inputs_embeds: prompt pooling needs the mask token; pass input_ids")
        return pool_mask_token(outputs.last_hidden_state, input_ids, self.mask_token_id)

    def embed_batch(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return the sentence embeddings `(B, D)` of tokens `(B, T)` from `read_batches`, which has checked them."""
        return self(**batch, pooled_only=True, checked=True, return_dict=True).pooler_output

    def encode_token_ids(
        self,
        token_ids: list[torch.Tensor],
        padding: int,
        batch_size: int,
        *,
        truncate_dim: int | None = None,
        show_progress_bar: bool = False,
    ) -> torch.Tensor:
        """Embed texts that were tokenised before, as `encode` does.

        Args:
            token_ids: of each text, from `tokenize`.
            padding: the id that pads.

        Returns:
            `(n, D)` on the model's device, in the order of the texts.

        Raises:
            ValueError: a vector is not finite.
        """
        order, batches = read_batches(self, token_ids, padding, batch_size, show_progress_bar)
        width = min(truncate_dim or self.embedding_size, self.embedding_size)
        # The vectors stay on the model's device, longest text first, and are copied to the host once, at the end.
        embeddings = torch.empty(len(order), width, dtype=self.dtype, device=self.device)
        with self.evaluating(), torch.inference_mode():
            for rows, batch in batches:
                embeddings[rows] = self.embed_batch(batch)[:, :width]
        places = torch.tensor(order, dtype=torch.long).argsort()
        embeddings = embeddings[places.to(self.device, non_blocking=True)]
        if not (finite := embeddings.isfinite().all(1)).all():
            raise ValueError(f"texts: the vector of item {finite.int().argmin()} is not finite; check the weights")
        return embeddings

    def _token_vectors(
        self, token_ids: list[torch.Tensor], padding: int, batch_size: int, show_progress_bar: bool
    ) -> list[torch.Tensor]:
        """Return the vectors of each text's tokens, `(tokens, H)` with special tokens, on the model's device."""
        order, batches = read_batches(self, token_ids, padding, batch_size, show_progress_bar)
        vectors: list[torch.Tensor] = [torch.empty(0)] * len(order)
        with self.evaluating(), torch.no_grad():
            for rows, batch in batches:
                states = self(**batch, checked=True, return_dict=True).last_hidden_state
                for text, states_of_text in zip(order[rows], states, strict=True):
                    vectors[text] = states_of_text[: len(token_ids[text])]
        return vectors

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Switch dropout off inside the context, in whichever thread."""
        with LOCK:
            if self._encoding == 0:
                self._was_training = self.training
            self._encoding += 1
            self.eval()
        try:
            yield
        finally:
            with LOCK:
                self._encoding -= 1
                if self._encoding == 0 and self._was_training:
                    self.train()


def read_batches(
    model: EncodesTexts, token_ids: list[torch.Tensor], padding: int, batch_size: int, show_progress_bar: bool
) -> tuple[list[int], Batches]:
    """Cut texts into batches of similar length, and check them before they go to the model's device.

    Returns:
        The numbers of the texts in the order of the batches, longest first, so that an input too large for the memory
        fails at once; and for each batch its part of that order and the model's inputs.
    """
    order = sorted(range(len(token_ids)), key=lambda i: -len(token_ids[i]))
    most_tokens = CPU_BATCH_TOKENS if model.device.type == "cpu" else TOKENS_PER_TEXT * batch_size
    slices = cut_batches([len(token_ids[i]) for i in order], batch_size, most_tokens)
    # `leave=None`: a bar below another one leaves no line behind.
    bar = logging.tqdm(slices, desc="Encoding", leave=None, disable=not show_progress_bar)

    def batches() -> Batches:
        for rows in bar:
            batch = pad_batch([token_ids[i] for i in order[rows]], padding)
            model.check_tokens(**batch)
            if model.device.type == "cuda":  # only a copy from pinned memory overlaps with computation
                batch = {name: tensor.pin_memory() for name, tensor in batch.items()}
            yield rows, {name: tensor.to(model.device, non_blocking=True) for name, tensor in batch.items()}

    return order, batches()


def checked_texts(texts: Iterable[str]) -> list[str]:
    """Return the texts as a list.

    Raises:
        TypeError: it is not a list of strings, for example a table.
        ValueError: a text has half of a surrogate pair, which no tokenizer can read.

    Example:
        >>> checked_texts(["a cat", None])
        Traceback (most recent call last):
        TypeError: texts: item 1 is None, not a string
    """
    if not isinstance(texts, Iterable) or isinstance(texts, dict | bytes):
        raise TypeError(f"texts: expected a string or a list of strings, got {texts!r:.60}")
    if getattr(texts, "ndim", 1) > 1:  # a table would give the names of its columns
        raise TypeError(f"texts: expected a list of strings, got {type(texts).__name__}; give one column of it")
    texts = getattr(texts, "to_pylist", lambda: list(texts))()  # an array of pyarrow has scalars of its own
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"texts: item {number} is {text!r:.60}, not a string")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ValueError(
                f"texts: item {number}, {text!a:.60}, has half of a surrogate pair; pass "
                "text.encode('utf-8', 'replace').decode()"
            ) from None
    return texts


def tokenize(tokenizer: PreTrainedTokenizerBase, texts: list[str]) -> list[torch.Tensor]:
    """Return the token ids of every text, truncated at the tokenizer's limit and not padded."""
    parts = (texts[start : start + TOKENISED_AT_ONCE] for start in range(0, len(texts), TOKENISED_AT_ONCE))
    return [torch.tensor(ids) for part in parts for ids in tokenizer(part, truncation=True)["input_ids"]]


def cut_batches(lengths: list[int], most_texts: int, most_tokens: int) -> list[slice]:
    """Cut texts into batches with a limit of texts and of tokens. A text over the limit is a batch by itself.

    Args:
        lengths: tokens of each text, longest first.
        most_tokens: limit of tokens in a batch, with padding.

    Example:
        >>> cut_batches([90, 50, 40, 30, 10, 10, 10], 3, 100)
        [slice(0, 1, None), slice(1, 3, None), slice(3, 6, None), slice(6, 7, None)]
    """
    batches, start = [], 0
    while start < len(lengths):
        texts = min(most_texts, max(1, most_tokens // lengths[start]))
        batches.append(slice(start, min(start + texts, len(lengths))))
        start += texts
    return batches


def pad_batch(token_ids: list[torch.Tensor], padding: int) -> dict[str, torch.Tensor]:
    """Return `input_ids` and `attention_mask`, `(B, T)`, padded on the right."""
    lengths = torch.tensor([len(ids) for ids in token_ids])
    input_ids = pad_sequence(token_ids, batch_first=True, padding_value=padding)
    attention_mask = (torch.arange(input_ids.shape[1]) < lengths[:, None]).long()
    return {"input_ids": input_ids, "attention_mask": attention_mask}
