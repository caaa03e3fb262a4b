from tests.methods.tested import Tested

TESTED = Tested(
    {"projection_size": 48},
    others={"base": {"variant": "base", "twin_dropout": False, "view_pooling": "mean"}},
    neutral={"guide": "self", "variant": "opt2", "regularizer_weight": 0.0, "freeze_embeddings": False},
    views=1,
    passes=(("BertModel", "parameters", 8), ("BertModel", "nothing", 8)),
)
