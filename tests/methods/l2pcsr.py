from tests.methods.tested import PASS, Tested

TESTED = Tested(
    others={
        "released": {
            "token_update": "sign",
            "token_step_size": 0.1,
            "feature_step_size": 0.1,
            "feature_mask_scope": "shared",
            "attend_padding": True,
        },
        "noise": {"weakening": "noise"},
    },
    neutral={"threshold": 0.0},
    # Whatever is drawn first, nothing is weakened at first, and every step goes all the way to 0 or 1.
    exact={"threshold": 1e-9, "token_update": "sign", "token_step_size": 1.0, "feature_step_size": 1e6},
    passes=(*[("BertModel", "masks", 16)] * 4, PASS),
    combinations=("l2pcsr+diffcse",),
)
