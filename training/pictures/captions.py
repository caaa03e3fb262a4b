"""The pictures that a card shows."""

from __future__ import annotations

# Those that a card shows where they lie beside it, with what they show.
PICTURES = {
    "training_curves.png": "Loss and dev score over the updates; the star is the checkpoint that was chosen",
    "similarities.png": "Cosine similarities of pairs at each gold score",
    "prefix_tuning.png": "Representation divergence δ and weight convergence κ while the prefixes are tuned",
    "layers.png": "The score of every layer under every pooling",
    "pairs.png": "Pairs of sentences on a plane",
    "weakened.png": "Tokens that training weakens, at each perturbed layer",
}
