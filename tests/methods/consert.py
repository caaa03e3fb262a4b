from tests.methods.tested import Tested

TESTED = Tested(
    others={
        "cutoff": {"first_view": "none", "second_view": "token_cutoff", "in_view_negatives": False},
        "two-poolings": {"pooling": "last2_mean", "training_pooling": "mean", "projection": "none"},
    },
    neutral={"first_view": "none", "second_view": "none", "in_view_negatives": False},
    exact={"cutoff_rate": 0.0},
    unedited={"first_view": "none", "second_view": "none"},
)
