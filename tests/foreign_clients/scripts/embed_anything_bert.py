import json
import os

import embed_anything
from embed_anything import EmbeddingModel, Pooling
from embedding import embed_all


def load(directory):
    """Embed as its documentation does; the pooling has to be named, because it does not read `1_Pooling`."""
    modes = json.loads((directory / "1_Pooling" / "config.json").read_text(encoding="utf-8"))
    pooling = Pooling.Cls if modes.get("pooling_mode_cls_token") else None
    model = EmbeddingModel.from_pretrained_hf(
        model_id=f"{os.environ['REPOSITORIES']}/{directory.name}", pooling=pooling
    )
    return lambda texts: [found.embedding for found in embed_anything.embed_query(texts, embedder=model)]


embed_all(load, "embed-anything")
