r"""ArcCSE's angular margin: a new method in one file.

The positive has to be closer than the others by at least an angle m:

.. math:: \ell_i = -\log \frac{e^{\cos(\theta_{ii} + m)/\tau}}
          {e^{\cos(\theta_{ii} + m)/\tau} + \sum_{j \ne i} e^{\cos(\theta_{ij})/\tau}}

where :math:`\theta_{ij}` is the angle between :math:`z_i` and :math:`z_j^+`.

To use it, copy this file to `modeling/methods/arccse/__init__.py`.
Then `--method arccse --margin 0.2` trains it from any recipe, alone or as `l2pcsr+arccse`. Its cards take description,
limits and citation from `modeling/methods/arccse/cards/arccse.yaml`. The file `tests/methods/arccse.py` runs all
tests of methods on it:

    TESTED = Tested(neutral={"margin": 0.0}, exact={"margin": 0.0})

References:
    Zhang, Zhu, Wang, Xu, Li, Zhao 2022, "A Contrastive Framework for Learning Sentence Representations from Pairwise
    and Triple-wise Perspective in Angular Space", ACL: its loss over pairs.

Relations:
    With `margin` 0 it is SimCSE.
"""

import math

import torch
import torch.nn.functional as F

from ...contrastive.configuration import SentenceEncoderConfig
from ...contrastive.keys import key
from ...contrastive.sentence_encoder import SentenceEncoderModel
from ...contrastive.training_model import ForContrastiveLearning
from ...objectives import cosine_logits, row_numbers, without_duplicates


class ArcCSEConfig(SentenceEncoderConfig):
    """The configuration of ArcCSE."""

    model_type = "arccse"

    margin: float = key(math.radians(10), "The angle m, in radians; 10 degrees by default.", "[0, 1.57]")

    @property
    def takes_three_views(self) -> bool:
        return False  # the loss is over pairs


class ArcCSEModel(SentenceEncoderModel):
    """The encoder that an ArcCSE checkpoint serves."""

    config_class = ArcCSEConfig


class ArcCSEForContrastiveLearning(ForContrastiveLearning):
    """The training model of ArcCSE: SimCSE with another objective."""

    config_class = ArcCSEConfig
    serving_class = ArcCSEModel
    seams = ("objective",)

    def objective(self, embeddings: torch.Tensor, mine: slice, duplicates: torch.Tensor | None) -> torch.Tensor:
        anchors, positives = embeddings.unbind(1)
        own = row_numbers(mine, anchors)[:, None]
        cosines = cosine_logits(anchors[mine], positives, temperature=1.0)  # (b, B), of this process's sentences
        positive = cosines.gather(1, own)
        sines = (1 - positive.square()).clamp(min=1e-12).sqrt()  # the root of 0 has no gradient
        farther = positive * math.cos(self.config.margin) - sines * math.sin(self.config.margin)  # the cosine of θ + m
        logits = without_duplicates(cosines.scatter(1, own, farther) / self.config.temperature, duplicates)
        return F.cross_entropy(logits, own[:, 0], reduction="sum") / len(anchors)


METHOD = (ArcCSEConfig, ArcCSEModel, ArcCSEForContrastiveLearning)
