"""The published tokenizer means the same to every client: each piece of its template is a token of that name."""

import json

import pytest
from tokenizers.pre_tokenizers import ByteLevel
from transformers import AutoTokenizer, BertTokenizer

from csezoo.training.errors import UserError
from csezoo.training.files import read_json
from csezoo.training.loading.templates import serving_tokenizer, template_token_ids
from csezoo.training.loading.tokenizers import load_tokenizer
from csezoo.training.quickstart.base import make_tokenizer
from tests.conftest import SENTENCES, tiny_tokenizer
from tests.families import FAMILIES, family_tokenizer

PROMPTS = {
    "no prompt": None,
    "a word twice": 'the sentence : the sentence of "{sentence}" means the {mask} .',
    "signs of the template language": "$A : $0 :1 A:0 {sentence} B {mask} $B .",
}


def as_transformers_js(tokenizer, text: str) -> list[int]:
    """Token ids by the rules of transformers.js: the name of a piece is its token, whatever `special_tokens` says."""
    vocabulary, ids = tokenizer.get_vocab(), []
    for piece in json.loads(tokenizer.backend_tokenizer.to_str())["post_processor"]["single"]:
        if "Sequence" in piece:
            ids += tokenizer(text, add_special_tokens=False).input_ids
        else:
            ids.append(vocabulary[piece["SpecialToken"]["id"]])
    return ids


@pytest.mark.parametrize("prompt", PROMPTS)
def test_every_piece_of_a_template_is_one_token_of_that_name(kind, prompt, tmp_path):
    base = tiny_tokenizer(kind)
    before, after = template_token_ids(base, PROMPTS[prompt])
    serving_tokenizer(base, (before, after), max_length=64).save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    words = loaded(SENTENCES[0], add_special_tokens=False).input_ids
    assert loaded(SENTENCES[0]).input_ids == before + words + after == as_transformers_js(loaded, SENTENCES[0])
    assert loaded(SENTENCES[0], SENTENCES[0]).input_ids == before + words + after + words + after


def test_a_vocabulary_with_a_gap_has_no_template(tmp_path):
    (tmp_path / "vocab.txt").write_text(
        "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "the", "a", "cat"])
    )
    tokenizer = BertTokenizer.from_pretrained(tmp_path)
    with pytest.raises(UserError, match="prompts: the tokenizer has no token with the id 5; fill the gaps"):
        template_token_ids(tokenizer, "{sentence} is {mask}")


def test_a_base_model_that_adds_to_sentences_at_test_adds_nothing_in_training(kind, tmp_path):
    """Neither to a sentence nor to the part of a template before the mask. The same holds for a leading space."""
    base, prompt = tiny_tokenizer(kind), 'the sentence of "{sentence}" means{mask} .'
    template = template_token_ids(base, prompt)
    serving_tokenizer(base, template, max_length=64, leading_space=True, full_stop=True).save_pretrained(tmp_path)
    loaded = load_tokenizer(str(tmp_path))
    assert template_token_ids(loaded, prompt) == template
    assert loaded("The cat", add_special_tokens=False).input_ids == base("The cat", add_special_tokens=False).input_ids


def test_the_quickstarts_tokenizer_has_the_ids_of_transformers_js():
    base = make_tokenizer(SENTENCES)
    tokenizer = serving_tokenizer(base, template_token_ids(base), max_length=64)
    assert tokenizer(SENTENCES[0]).input_ids == as_transformers_js(tokenizer, SENTENCES[0])


LANGUAGES = [
    "那只小猫坐在河边的房子里。",
    "Кошка видит старый дом у реки.",
    "القط يرى البيت القديم بجانب النهر.",
    "Die Katze sieht das große Haus am Fluß.",
    "ねこは川のそばの古い家を見る。",
    "고양이가 강가의 오래된 집을 본다.",
]
KINDS = {FAMILIES[family][2]: family for family in FAMILIES}


@pytest.mark.parametrize("tokenizer_kind", KINDS)
def test_templates_survive_saving_in_every_kind_of_tokenizer_and_language(tokenizer_kind, tmp_path):
    base = family_tokenizer(KINDS[tokenizer_kind], LANGUAGES)
    causal = base.cls_token is None
    prompt = '这句话 : "{sentence}"' + (' 的意思是:"' if causal else " 的意思是 {mask} 。")
    template = template_token_ids(base, prompt)
    serving_tokenizer(base, template, max_length=64).save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    for text in LANGUAGES:
        words = base(text, add_special_tokens=False).input_ids
        assert len(words) > 3 and base.unk_token_id not in words
        assert loaded(text).input_ids == template[0] + words + template[1]
        assert loaded.decode(words).replace(" ", "").casefold() in text.replace(" ", "").casefold() or not causal
    cut = loaded(" ".join(LANGUAGES * 9), truncation=True).input_ids
    assert len(cut) == 64 and cut[-len(template[1]) :] == template[1], "truncation leaves room for the template"


@pytest.mark.parametrize("leading_space", [False, True])
def test_transformers_4_resets_a_byte_level_tokenizer_to_what_its_configuration_says(leading_space, tmp_path):
    tokenizer = tiny_tokenizer("roberta")
    template = template_token_ids(tokenizer, PROMPTS["a word twice"])
    serving_tokenizer(tokenizer, template, max_length=64, leading_space=leading_space).save_pretrained(tmp_path)
    config = read_json(tmp_path / "tokenizer_config.json")
    state = read_json(tmp_path / "tokenizer.json")
    assert config.get("add_prefix_space", False) == state["pre_tokenizer"]["add_prefix_space"] == leading_space


def test_the_leading_space_of_a_base_model_s_own_tokenizer_stays(tmp_path):
    base = tiny_tokenizer("roberta")
    base.backend_tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=True)
    template = template_token_ids(base, PROMPTS["a word twice"])
    serving_tokenizer(base, template, max_length=64, leading_space=True).save_pretrained(tmp_path)
    assert template_token_ids(load_tokenizer(str(tmp_path)), PROMPTS["a word twice"]) == template


@pytest.mark.parametrize(("family", "begin"), [("Llama", [2]), ("Qwen3", [])])
def test_a_decoder_s_text_begins_as_its_tokenizer_says_and_ends_with_the_token_of_the_end(family, begin):
    tokenizer = family_tokenizer(family)
    assert template_token_ids(tokenizer) == (begin, [tokenizer.eos_token_id])
    before, after = template_token_ids(tokenizer, 'the "{sentence}" means:"')
    assert before[: len(begin)] == begin and tokenizer.eos_token_id not in after, "the template's last token is pooled"


def test_a_decoder_without_a_padding_token_pads_with_the_end(tmp_path):
    tokenizer = family_tokenizer("Llama")
    tokenizer.pad_token = None
    tokenizer.save_pretrained(tmp_path)
    assert load_tokenizer(str(tmp_path)).pad_token_id == tokenizer.eos_token_id
