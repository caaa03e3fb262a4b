"""With `mask_duplicates`, a sentence that is in a batch twice is not its own negative."""

import pytest
import torch

from csezoo.modeling import METHODS
from tests.methods import CONFIGS
from tests.tiny import batch, configure


@pytest.mark.parametrize("name", [name for name in CONFIGS if name not in ("simcse-whitening", "simcse-flow")])
def test_every_method_has_the_option(name):
    def loss(rows, **changes):
        torch.manual_seed(0)
        config = configure(name, "bert", **changes)
        model = METHODS[config.model_type][2](config).train()
        torch.manual_seed(0)
        return model(**rows).losses["contrastive"].item()

    different = batch()
    repeated = {key: value[1:2].repeat(5, 1, 1) for key, value in different.items()}  # whichever pairs are drawn
    assert loss(different, mask_duplicates=True) == loss(different)
    assert loss(repeated, mask_duplicates=True) != loss(repeated)


def test_labelled_triplets_have_the_option():
    def loss(rows, **changes):
        torch.manual_seed(0)
        config = configure("simcse", "bert", nli_classes=2, nli_objective="contrastive", **changes)
        model = METHODS["simcse"][2](config).eval()
        return model(nli_input_ids=rows["input_ids"], nli_attention_mask=rows["attention_mask"]).loss.item()

    different = batch(views=3)
    twice = {key: torch.cat([value, value[1:2]]) for key, value in different.items()}
    assert loss(different, mask_duplicates=True) == loss(different)
    assert loss(twice, mask_duplicates=True) < loss(twice)
