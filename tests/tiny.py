"""Tiny models of every method, and batches for them."""

import torch
from torch.nn.utils.rnn import pad_sequence

from csezoo.modeling import METHODS, method
from csezoo.training.recipes import load_recipe
from tests.conftest import NO_DROPOUT, tiny_config, tiny_tokenizer
from tests.methods import CONFIGS

PROMPTS = {
    "bert": load_recipe("promptbert-bert-base-uncased").model["prompts"],
    "roberta": load_recipe("promptbert-roberta-base").model["prompts"],
}


def configure(name: str, kind: str, **changes):
    config_class = METHODS[name.split("-")[0]][0]
    tokenizer = tiny_tokenizer(kind)
    return config_class(
        backbone_config=tiny_config(kind),
        mask_token_id=tokenizer.mask_token_id,
        special_token_ids=tokenizer.all_special_ids,
        **{**CONFIGS[name], **changes},
    )


def batch(sentences=4, views=2, tokens=7):
    torch.manual_seed(1)
    input_ids = torch.randint(10, 40, (sentences, views, tokens))
    attention_mask = torch.ones_like(input_ids)
    attention_mask[0, :, 5:] = 0
    return {"input_ids": input_ids, "attention_mask": attention_mask}


def in_templates(model, sentences, views=2):
    """A batch of sentences (lists of ids), each view in its template. Views beyond the templates have the last one."""
    templates = model.config.prompt_token_ids
    of_views = [templates[min(view, len(templates) - 1)] for view in range(views)]
    rows = [torch.tensor(before + sentence + after) for sentence in sentences for before, after in of_views]
    input_ids = pad_sequence(rows, batch_first=True, padding_value=1).unflatten(0, (-1, views))
    attention_mask = pad_sequence(list(map(torch.ones_like, rows)), batch_first=True).unflatten(0, (-1, views))
    return {"input_ids": input_ids, "attention_mask": attention_mask}


def one_view(rows):
    return {key: value[:, 0] for key, value in rows.items()}


def gradients(model):
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def training_model(name, kind="bert", backbone=NO_DROPOUT, **keys):
    """A float64 training model of a method, or of several joined by `+`, without dropout unless asked for."""
    config_class, _, training_class = method(name)
    torch.manual_seed(0)
    return training_class(config_class(backbone_config=tiny_config(kind, **backbone), **keys)).double().train()
