import json

import numpy as np
from embedding import embed_all
from openvino import Core
from tokenizers import Tokenizer


def load(directory):
    settings = json.loads((directory / "tokenizer_config.json").read_text(encoding="utf-8"))
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.enable_truncation(settings["model_max_length"])
    tokenizer.enable_padding(pad_id=tokenizer.token_to_id(settings["pad_token"]), pad_token=settings["pad_token"])
    # Without the hint, OpenVINO may compute in bfloat16.
    model = Core().compile_model(directory / "onnx" / "model.onnx", "CPU", {"INFERENCE_PRECISION_HINT": "f32"})

    def encode(texts):
        rows = tokenizer.encode_batch(texts)
        inputs = {"input_ids": [row.ids for row in rows], "attention_mask": [row.attention_mask for row in rows]}
        return model({name: np.array(values, np.int64) for name, values in inputs.items()})["sentence_embedding"]

    return encode


embed_all(load, "openvino", "tokenizers")
