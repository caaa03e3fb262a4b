from tests.methods.tested import Tested

TESTED = Tested(
    others={
        "batchnorm": {"projection": "batchnorm"},
        "kept-projection": {"projection_at_test": True},
        "mlm-transform": {"projection": "mlm_transform", "projection_at_test": True},
        "mlm": {"mlm_weight": 0.1},
        "mean": {"pooling": "mean", "projection": "none"},
        "nli": {"nli_classes": 3},
        "triplets": {"nli_classes": 2, "nli_objective": "contrastive"},
        "whitening": {"whitening_size": 8},
        "flow": {"flow_width": 4},
        "average": {"ema_decay": 0.5},
        "lora": {"lora_rank": 3},
        "matryoshka": {"matryoshka_dims": [4, 16], "matryoshka_weights": [0.5, 1.0]},
    },
    neutral={},
    own_code=("flow",),
)
