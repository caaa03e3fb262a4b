"""`csezoo train --help`, `csezoo train RECIPE --help` and the reference page."""

import re

import pytest

from csezoo.training.recipes import method_keys
from csezoo.training.recipes.help import comments
from csezoo.training.recipes.keys import recipe_keys
from csezoo.training.train import main


def help_of(capsys, *words) -> str:
    main([*words, "--help"])
    return capsys.readouterr().out


def entry(text: str, key: str) -> str:
    """What the help says of a key: its line and the indented ones below it."""
    found = re.findall(rf"^  --{key} \(.*\n(?:      .*\n?)*", text, re.MULTILINE)
    assert len(found) == 1, key
    return " ".join(found[0].split())


def test_help_has_every_key_once_with_type_unit_default_and_a_line_of_help(capsys):
    shown = help_of(capsys)
    assert "example: accelerate launch -m csezoo.training.train " in shown
    for name, key in recipe_keys().items():
        said = entry(shown, name)
        assert key.help in said and key.unit in said and "default " in said
    assert entry(shown, "batch_size").startswith("--batch_size (int; sentences; default 64) Sentences in a batch")
    assert entry(shown, "max_steps").startswith("--max_steps (int or null; updates; default null) ")
    assert "one of linear, cosine, " in entry(shown, "lr_scheduler")
    assert "(list of float; default [0.9, 0.999])" in entry(shown, "adam_betas")


def test_help_of_a_recipe_has_its_values_with_their_reasons(capsys):
    shown = help_of(capsys, "simcse-bert-base-uncased")
    assert "Unsupervised SimCSE on BERT-base." in shown
    assert "  batch_size: 64\n      paper, appendix A: 64 for BERT\n" in shown
    assert "  learning_rate: 3.0e-05\n      paper, appendix A, chosen on STS-B dev\n" in shown
    assert shown.rstrip().endswith("All other keys: csezoo train --help")


def test_help_of_a_recipe_has_the_keys_of_its_method_or_of_the_one_given(capsys):
    assert "Method sgopt:" in (of_sgopt := help_of(capsys, "sgopt-bert-base-uncased"))
    for name, key in method_keys("sgopt").items():
        assert key.help in entry(of_sgopt, name)
    combined = help_of(capsys, "simcse-bert-base-uncased", "--method", "l2pcsr+diffcse")
    assert "Method l2pcsr:" in combined and "Method diffcse:" in combined and "--rtd_weight" in combined


def test_help_of_a_recipe_shows_the_values_that_it_uses(capsys):
    shown = help_of(capsys, "sgopt-roberta-base", "--temperature", "0.5", "--name", "mine")
    assert "  temperature: 0.5\n      given on the command line\n" in shown
    assert "  name: mine\n      given on the command line\n" in shown
    assert entry(shown, "temperature").startswith("--temperature (float; in this recipe 0.5; default 0.01)")
    assert "in this recipe mean; default cls" in entry(help_of(capsys, "sbert-nli-bert-base-uncased"), "pooling")


def test_help_shows_the_values_and_comments_of_a_yaml_file(capsys, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("# Mine.\nepochs: 2  # enough\n", encoding="utf-8")
    assert "Mine.\n\nValues of mine:\n  epochs: 2.0\n      enough\n" in help_of(capsys, str(file))


@pytest.mark.parametrize(
    ("text", "about", "reasons"),
    [
        ("a: 1 # one\nb: 2", "", {"a": "one", "b": ""}),
        ("# Head.\n# More.\na: 1", "Head.\nMore.", {"a": ""}),
        ("a: 1  # one\n      # and more\nb: 2  # two", "", {"a": "one and more", "b": "two"}),
        ("a: 1\n# for b\nb: 2  # two", "", {"a": "", "b": "for b two"}),
        ("a: 'x # y'\nb: x#y  # b's", "", {"a": "", "b": "b's"}),
        ("a:  # all\n  - 'x'\n  - '# y'\nb: 2", "", {"a": "all", "b": ""}),
        ("a: |\n  # text\nb: 2  # two", "", {"a": "", "b": "two"}),
        ("a: 'x\n  # y'\nb: 2", "", {"a": "", "b": ""}),
        ("", "", {}),
    ],
)
def test_comments_of_yaml_belong_to_their_keys(text, about, reasons):
    assert comments(text) == (about, reasons)
