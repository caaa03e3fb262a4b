"""What the tests have to know of a method."""

from dataclasses import dataclass, field

Keys = dict[str, object]
# Of 8 sentences in two views: the encoder's class, what its result is differentiated by, the rows.
PASS = ("BertModel", "parameters", 16)


@dataclass(frozen=True)
class Tested:
    """What the tests have to know of a method.

    Args:
        settings: of its configuration, for a tiny model; a recipe of its runs has them too, but for `batch_size`.
        others: more settings that the matrix covers, by a name for each.
        neutral: the setting at which it is SimCSE; None for a method that is no change of SimCSE.
        also_neutral: more settings at which it is, or is without its own training, SimCSE.
        exact: the setting at which nothing is drawn and nothing is chaotic, so that two processes give the numbers of
            one.
        unedited: the setting at which no text is edited at random; each process of other trainers draws its own.
        recipe: more keys of its runs. Where they ask for a stage on labelled pairs, the runs get triplets.
        views: rows of a sentence in the batches of `exact`.
        passes: the encoder passes that an update on 8 sentences needs.
        combinations: other methods that it is trained and resumed with, each as `--method` takes it.
        own_code: the names of the settings that have no plain form; `""` is that of `settings`.
    """

    settings: Keys = field(default_factory=dict)
    others: dict[str, Keys] = field(default_factory=dict)
    neutral: Keys | None = field(kw_only=True)
    also_neutral: tuple[Keys, ...] = ()
    exact: Keys = field(default_factory=dict)
    unedited: Keys = field(default_factory=dict)
    recipe: Keys = field(default_factory=dict)
    views: int = 2
    passes: tuple[tuple[str, str, int], ...] = (PASS,)
    combinations: tuple[str, ...] = ()
    own_code: tuple[str, ...] = ()
