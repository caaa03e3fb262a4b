"""Captions of the pictures on a model card."""

from __future__ import annotations

# A card shows each of these files that is in its directory.
PICTURES = {
    "training_curves.png": "Loss and dev score over the updates; the star marks the chosen checkpoint",
    "similarities.png": "Cosine similarities of pairs at each gold score",
    "prefix_tuning.png": "Representation divergence δ and weight convergence κ in the first stage",
    "layers.png": "The score of every layer under every pooling",
    "pairs.png": "Pairs of sentences on a plane",
    "weakened.png": "Tokens that training weakens, at each perturbed layer",
}
