"""Prompt templates as token ids, and in the published tokenizer."""

from __future__ import annotations

import json

from tokenizers import Regex, Tokenizer
from tokenizers.normalizers import Replace, Sequence
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from ..errors import UserError

Template = tuple[list[int], list[int]]
# PromptBERT's evaluation adds a full stop to a sentence that ends in none of these four signs. This is the empty place
# after any other last character, in the syntax that Rust's and JavaScript's regular expressions share.
FULL_STOP = r"""(?<=[^.?"'])(?![\s\S])"""
ADD_FULL_STOP = Replace(Regex(FULL_STOP), ".")
LEADING_SPACE = "adds_leading_space"  # in tokenizer_config.json: the tokenizer of the base model adds none


def template_token_ids(tokenizer: PreTrainedTokenizerBase, prompt: str | None = None) -> Template:
    """Return the token ids before and after a sentence: special tokens, and the template if there is one.

    The space before the sentence belongs to the sentence: like PromptBERT, this strips it off the template.

    Args:
        prompt: a template with `{sentence}` and `{mask}`, or with `{sentence}` alone, whose last token is pooled.

    Raises:
        UserError: the template does not have exactly one mask token with this tokenizer.
    """
    begin, end = special_ends(tokenizer)
    if prompt is None:
        return begin, end
    before, after = prompt.split("{sentence}")

    def ids(text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False).input_ids

    begin = [*begin, *ids(before.rstrip())]
    if "{mask}" not in prompt:
        return begin, ids(after)
    end = [*ids(after.replace("{mask}", tokenizer.mask_token)), *end]
    if end.count(tokenizer.mask_token_id) != 1:
        raise UserError(f"prompts: {prompt!r} must have exactly one mask token with this tokenizer")
    ids_in_use = set(tokenizer.get_vocab().values())
    if gaps := set(range(max(ids_in_use))) - ids_in_use:  # a published repository counts its tokens to add one
        raise UserError(
            f"prompts: the tokenizer has no token with the id {min(gaps)}; fill the gaps in its vocabulary"
        )
    return begin, end


def special_ends(tokenizer: PreTrainedTokenizerBase) -> Template:
    """Return the special tokens before and after a text.

    They are [CLS] and [SEP], by whatever name. The tokenizer of a decoder has neither. The special tokens that it puts
    before a text are kept, and its end token follows the text, so that `last` pooling always reads the same token.
    """
    if tokenizer.cls_token is not None and tokenizer.sep_token is not None:
        return [tokenizer.cls_token_id], [tokenizer.sep_token_id]
    before, _ = own_ends(tokenizer)
    return [token for token in before if token in tokenizer.all_special_ids], [tokenizer.eos_token_id]


def own_ends(tokenizer: PreTrainedTokenizerBase) -> Template:
    """Return the tokens that a tokenizer itself puts before and after a text: those of a model that is served."""
    encoded = tokenizer("a", return_special_tokens_mask=True)
    ids, added = encoded["input_ids"], encoded["special_tokens_mask"]
    start, stop = added.index(0), len(added) - added[::-1].index(0)
    return ids[:start], ids[stop:]


def serving_tokenizer(
    tokenizer: PreTrainedTokenizerBase,
    template: Template,
    *,
    max_length: int,
    leading_space: bool = False,
    full_stop: bool = False,
) -> PreTrainedTokenizerFast:
    """Make the tokenizer that is published with a model. It adds the template to every sentence, and counts it.

    The tokenizer's class is the generic `PreTrainedTokenizerFast`. The classes of BERT and RoBERTa rebuild their
    post-processor when they are loaded and would lose the template.

    Args:
        template: ids before and after the sentence, see `template_token_ids`.
        max_length: longest input of the backbone, including the template.
        leading_space: mark the first word with a leading space (byte-level BPE). PromptBERT's release tokenises the
            sentence alone in training (no marker) and inside the template at test (marker).
        full_stop: add a full stop to a sentence that ends without one, see `FULL_STOP`. It counts for truncation. A
            special token that is written in a text ends a sentence: the part before it gets a full stop too.
    """
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    backend = Tokenizer.from_str(json.dumps({**state, "post_processor": post_processor(tokenizer, template)}))
    backend.no_truncation()
    backend.no_padding()
    marks = {}
    if leading_space and isinstance(backend.pre_tokenizer, ByteLevel) and not backend.pre_tokenizer.add_prefix_space:
        backend.pre_tokenizer = ByteLevel(add_prefix_space=True)
        marks = {LEADING_SPACE: True}
    if full_stop:
        steps = [ADD_FULL_STOP, *([backend.normalizer] if backend.normalizer else [])]
        backend.normalizer = Sequence(steps)
    names = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
    spaced = isinstance(backend.pre_tokenizer, ByteLevel) and backend.pre_tokenizer.add_prefix_space
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        **({"add_prefix_space": True} if spaced else {}),  # transformers 4 resets the pre-tokenizer to this
        **marks,
        model_max_length=max_length,
        model_input_names=["input_ids", "attention_mask"],
        **({"truncation_side": "left"} if tokenizer.truncation_side == "left" else {}),
        **{name: token for name in names if (token := getattr(tokenizer, name)) is not None},
    )


def remove_additions(tokenizer: PreTrainedTokenizerBase) -> None:
    """Remove in place what a serving tokenizer adds to a sentence at test: training takes sentences as they are.

    This is the full stop, and the leading space that its base model's tokenizer does not add.
    """
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        return
    backend = tokenizer.backend_tokenizer
    steps = backend.normalizer
    if isinstance(steps, Sequence) and repr(steps[0]) == repr(ADD_FULL_STOP):
        backend.normalizer = Sequence([steps[number] for number in range(1, len(steps))])
    if tokenizer.init_kwargs.get(LEADING_SPACE):
        backend.pre_tokenizer = ByteLevel(add_prefix_space=False)


def post_processor(tokenizer: PreTrainedTokenizerBase, template: Template) -> dict[str, object]:
    """Return the part of `tokenizer.json` that puts a template around a text, or around a pair of texts.

    Each token is a piece with the token's own name, because transformers.js uses the name of a piece as its token.
    This is JSON and not `TemplateProcessing`, which cannot read a name with a colon or a dollar sign in it.
    """
    names = {token: tokenizer.convert_ids_to_tokens(token) for token in template[0] + template[1]}
    before, after = ([{"SpecialToken": {"id": names[token], "type_id": 0}} for token in ids] for ids in template)
    first, second = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    return {
        "type": "TemplateProcessing",
        "single": [*before, first, *after],
        "pair": [*before, first, *after, second, *after],
        "special_tokens": {name: {"id": name, "ids": [token], "tokens": [name]} for token, name in names.items()},
    }
