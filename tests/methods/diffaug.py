from tests.methods.tested import Tested

TESTED = Tested(
    others={
        "same": {"views_mode": "same", "reparametrisation": False, "mlm_weight": 0.1},
        "lora": {"views_module": "lora", "nli_classes": 0},
        "adapter": {"views_module": "adapter", "projection_at_test": True},
    },
    neutral={"prefix_length": 0, "nli_classes": 0},
    recipe={"nli_steps": 3, "max_steps": 3, "nli_weight": 0.1},
    combinations=("diffaug+diffcse",),
    own_code=("", "same", "adapter"),
)
