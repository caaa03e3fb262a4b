"""Prompt templates in the tokenizer, and their bias."""

import copy
import json
import shutil
import subprocess

import pytest
import torch
from tokenizers import Regex
from tokenizers.normalizers import Replace
from transformers import AutoTokenizer

from csezoo.modeling import SimCSEConfig, SimCSEForContrastiveLearning
from csezoo.training.loading.templates import FULL_STOP, serving_tokenizer, template_token_ids
from tests.conftest import tiny_config, tiny_tokenizer
from tests.tiny import PROMPTS, in_templates, one_view


def test_templates_equal_the_published_ones():
    assert PROMPTS["bert"] == [
        'This sentence of "{sentence}" means{mask}.',
        'This sentence : "{sentence}" means{mask}.',
    ]
    assert PROMPTS["roberta"] == [
        "This sentence : ' {sentence} ' means{mask}.",
        "The sentence : ' {sentence} ' means{mask}.",
    ]


def test_the_bert_template_equals_the_tokenised_string():
    tokenizer = tiny_tokenizer("bert")
    before, after = template_token_ids(tokenizer, PROMPTS["bert"][0])
    whole = tokenizer('This sentence of "the cat sees" means[MASK].').input_ids
    assert before + tokenizer("the cat sees", add_special_tokens=False).input_ids + after == whole
    assert (len(before), len(after)) == (5, 5)


def test_roberta_tokenises_the_sentence_alone_only_in_training():
    tokenizer = tiny_tokenizer("roberta")
    template = template_token_ids(tokenizer, PROMPTS["roberta"][0])
    whole = tokenizer("This sentence : ' the cat sees ' means<mask>.").input_ids
    serving = serving_tokenizer(tokenizer, template, max_length=64, leading_space=True)
    assert serving("the cat sees").input_ids == whole
    alone = template[0] + tokenizer("the cat sees", add_special_tokens=False).input_ids + template[1]
    assert alone != whole  # without the space, the first word is another token


@pytest.fixture
def prompted(kind):
    tokenizer = tiny_tokenizer(kind)
    torch.manual_seed(0)
    config = SimCSEConfig(
        backbone_config=tiny_config(kind),
        pooling="prompt",
        prompts=PROMPTS[kind],
        prompt_token_ids=[template_token_ids(tokenizer, prompt) for prompt in PROMPTS[kind]],
        denoise="train",
        mask_token_id=tokenizer.mask_token_id,
    )
    return SimCSEForContrastiveLearning(config).double()


@pytest.mark.parametrize("offset", [0, 2])
def test_the_bias_encodes_the_template_with_positions_after_the_sentence_shifted(prompted, offset):
    model = prompted.model.eval()
    before, after = model.config.prompt_token_ids[0]
    mask = model.config.mask_token_id
    model.config.denoise_position_offset = offset
    bias = model.biases_by_length(0, 7)
    assert len(bias) == 8
    for k in range(8):
        positions = [*range(len(before)), *range(len(before) + k, len(before) + k + len(after))]
        alone = model.backbone(
            input_ids=torch.tensor([before + after]), position_ids=torch.tensor([positions]) + offset
        ).last_hidden_state[0, (before + after).index(mask)]
        torch.testing.assert_close(bias[k], alone, atol=1e-12, rtol=0)


def test_each_view_subtracts_the_bias_of_its_template_and_length(prompted):
    prompted.eval()
    sentences = [[10, 11, 12], [13], [14, 15, 16, 17]]
    rows = in_templates(prompted, sentences)
    with_bias = prompted.pool_views(**rows)
    for i, sentence in enumerate(sentences):
        for v in range(2):
            _, pooled = prompted.model.encode_tokens(**{name: values[i : i + 1, v] for name, values in rows.items()})
            expected = pooled[0] - prompted.model.biases_by_length(v, len(sentence))[len(sentence)]
            torch.testing.assert_close(with_bias[i, v], expected, atol=1e-12, rtol=0)


def test_serving_subtracts_the_bias_only_where_the_config_says_always(prompted):
    model = prompted.model.eval()
    rows = one_view(in_templates(prompted, [[10, 11], [12, 13]]))
    plain = model(**rows).pooler_output
    model.config.denoise = "always"
    torch.testing.assert_close(
        plain - model(**rows).pooler_output, model.prompt_bias(**rows, template=0), atol=1e-12, rtol=0
    )


@pytest.mark.parametrize("denoise", ["train", "always"])
def test_labelled_pairs_lose_the_bias_only_where_the_config_says_always(prompted, denoise):
    """As dev and serving do. With `train`, DiffAug's stage on labelled pairs subtracts none."""
    config = copy.deepcopy(prompted.config)
    config.denoise, config.nli_classes, config.nli_objective = denoise, 2, "contrastive"
    model = SimCSEForContrastiveLearning(config).double().eval()
    rows = in_templates(model, [[10, 11, 12], [13], [14, 15]])
    pooled = model.pool_rows(**rows)
    if denoise == "always":
        pooled = pooled - model.prompt_biases(**rows)
    expected = model.contrastive_loss(model.project(pooled))
    output = model(**{f"nli_{name}": values for name, values in rows.items()})
    torch.testing.assert_close(output.losses["nli"], expected, atol=1e-12, rtol=0)


def test_the_masked_lm_transform_maps_vector_and_bias_apart_at_test_and_in_training(prompted):
    """f(h) - f(b), f = LayerNorm(GELU(W x + c)), which is not f(h - b)."""
    config = copy.deepcopy(prompted.config)
    config.projection, config.projection_at_test, config.denoise = "mlm_transform", True, "always"
    model = SimCSEForContrastiveLearning(config).double().eval()
    model.model.backbone.load_state_dict(prompted.model.backbone.state_dict())
    transform = model.model.transform
    torch.nn.init.normal_(transform.layer_norm.weight)

    def f(x):
        x = x @ transform.dense.weight.T + transform.dense.bias
        x = x * (1 + torch.erf(x / 2**0.5)) / 2
        centred = x - x.mean(1, keepdim=True)
        eps = config.backbone_config.layer_norm_eps
        return centred / (centred.square().mean(1, keepdim=True) + eps).sqrt() * transform.layer_norm.weight

    rows = in_templates(model, [[10, 11, 12], [13]])
    prompted.eval()
    _, h = prompted.model.encode_tokens(**one_view(rows))
    expected = f(h) - f(prompted.model.prompt_bias(**one_view(rows), template=0))
    served = model.model(**one_view(rows)).pooler_output
    torch.testing.assert_close(served, expected, atol=1e-12, rtol=0)
    trained = model.project(model.pool_views(**rows))
    torch.testing.assert_close(trained[:, 0], expected, atol=1e-12, rtol=0)


ENDINGS = {"the cat sees": ".", "the cat sees.": "", "the cat?": "", "'the cat'": "", '"the cat"': "", "the cat!": "."}


@pytest.mark.parametrize(("text", "added"), [*ENDINGS.items(), ("", ""), ("the\ncat", "."), ("the cat ", ".")])
def test_a_sentence_without_a_full_stop_gets_one_before_the_template(kind, text, added, tmp_path):
    """As PromptBERT's evaluation, which leaves an empty text and the four signs alone."""
    tokenizer = tiny_tokenizer(kind)
    template = template_token_ids(tokenizer, PROMPTS[kind][0])
    options = {"max_length": 64, "leading_space": True}
    serving_tokenizer(tokenizer, template, full_stop=True, **options).save_pretrained(tmp_path)
    plain = serving_tokenizer(tokenizer, template, **options)
    assert AutoTokenizer.from_pretrained(tmp_path)(text).input_ids == plain(text + added).input_ids


@pytest.mark.skipif(shutil.which("node") is None, reason="JAVASCRIPT NOT TESTED: no node")
def test_javascript_adds_the_same_full_stops():
    """transformers.js makes a regular expression with the flags g and u from the normaliser, and replaces all."""
    texts = [*ENDINGS, "", "the\ncat", "the cat ", "\n", "Königin 你好 🙂", "a..b"]
    code = "const [pattern, texts] = JSON.parse(require('fs').readFileSync(0));"
    code += "console.log(JSON.stringify(texts.map(text => text.replaceAll(new RegExp(pattern, 'gu'), '.'))))"
    pattern = json.dumps([FULL_STOP, texts])
    done = subprocess.run(["node", "-e", code], input=pattern, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [Replace(Regex(FULL_STOP), ".").normalize_str(text) for text in texts]


def test_the_full_stop_counts_for_truncation(kind):
    tokenizer = tiny_tokenizer(kind)
    template = template_token_ids(tokenizer, PROMPTS[kind][0])
    words = tokenizer("the the", add_special_tokens=False).input_ids
    longest = sum(map(len, template)) + len(words)
    serving = serving_tokenizer(tokenizer, template, max_length=longest, full_stop=True)
    assert len(serving("the the").input_ids) == longest + 1
    assert serving("the the", truncation=True).input_ids == template[0] + words + template[1]


def test_a_special_token_in_a_text_ends_a_sentence(kind):
    """A normaliser sees the parts between special tokens. The authors' code adds one full stop, at the very end."""
    tokenizer = tiny_tokenizer(kind)
    template = template_token_ids(tokenizer, PROMPTS[kind][0])
    serving = serving_tokenizer(tokenizer, template, max_length=64, full_stop=True)
    plain = serving_tokenizer(tokenizer, template, max_length=64)
    sep = tokenizer.sep_token
    assert serving(f"the cat{sep}the dog").input_ids == plain(f"the cat.{sep}the dog.").input_ids
    assert serving(f"the cat{sep}").input_ids == plain(f"the cat.{sep}").input_ids
