"""The demo: its functions here, its page in an environment that has gradio."""

import importlib.util
import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from tests.conftest import SENTENCES
from tests.interpreters import free_port
from tests.repositories import tiny_repository

SPACE = Path(__file__).parents[1] / "examples" / "space"
FIRST, SECOND = SENTENCES[:2]
PROMPT = {"pooling": "prompt", "prompts": ['this sentence : "{sentence}" means {mask} .']}


@pytest.fixture(scope="module")
def app():
    spec = importlib.util.spec_from_file_location("space_app", SPACE / "app.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def repositories(tmp_path_factory) -> list[Path]:
    """One model without and one with a prompt."""
    directory = tmp_path_factory.mktemp("models")
    return [tiny_repository(directory / "plain"), tiny_repository(directory / "prompted", method="l2pcsr", **PROMPT)]


@pytest.fixture(scope="module")
def encoders(app, repositories):
    return [app.Encoder(str(repository)) for repository in repositories]


def test_a_model_is_named_with_its_method_and_any_other_with_its_family(app, encoders, repositories, bases):
    assert [encoder.name for encoder in encoders] == [f"{repositories[0]} (simcse)", f"{repositories[1]} (l2pcsr)"]
    assert app.Encoder(str(bases["bert"])).name == f"{bases['bert']} (bert)"


def test_every_model_compares_the_two_sentences(app, encoders):
    equal = app.similarity(encoders, FIRST, f" {FIRST}\n")
    assert equal == [[1.0, encoder.name] for encoder in encoders]
    for (cosine, _), encoder in zip(app.similarity(encoders, FIRST, SECOND), encoders, strict=True):
        one, other = encoder.model.encode([FIRST, SECOND], normalize_embeddings=True)
        assert cosine == pytest.approx(float(one @ other), abs=6e-4)


def test_the_requirements_fit_the_constraints_and_bring_no_cuda():
    """pip takes the build of PyTorch for CPU only if its version says so."""
    constraints = (SPACE.parents[1] / "constraints.txt").read_text(encoding="utf-8").splitlines()
    (torch,) = (line for line in constraints if line.startswith("torch=="))
    lines = (SPACE / "requirements.txt").read_text(encoding="utf-8").splitlines()
    assert "--extra-index-url https://download.pytorch.org/whl/cpu" in lines
    assert f'{torch}+cpu; sys_platform == "linux"' in lines
    (pillow,) = (Requirement(line) for line in constraints if line.startswith("pillow=="))
    assert pillow.specifier.contains("12.3.0"), "gradio 6.31 needs pillow below 13"


def test_search_ranks_the_lines_by_cosine(app, encoders):
    for encoder in encoders:
        lines = SENTENCES[:40]
        found = app.search(encoder, FIRST, "\n\n".join([*lines[1:], FIRST]))
        assert found[0] == [1, 1.0, FIRST]
        assert [rank for rank, *_ in found] == list(range(1, 41))
        assert sorted(line for *_, line in found) == sorted(lines)
        cosines = [cosine for _, cosine, _ in found]
        assert cosines == sorted(cosines, reverse=True)


def test_equal_lines_stay_in_the_order_they_were_given(app, encoders):
    found = app.search(encoders[0], FIRST, f"{SECOND}\n{SECOND} \n{FIRST}")
    assert [line for *_, line in found] == [FIRST, SECOND, SECOND]


@pytest.mark.parametrize(
    ("function", "texts", "said"),
    [
        ("similarity", ("", FIRST), "Type two sentences."),
        ("similarity", (FIRST, " \n"), "Type two sentences."),
        ("search", ("", FIRST), "Type a query, and the sentences to search, one per line."),
        ("search", (FIRST, " \n\n"), "Type a query, and the sentences to search, one per line."),
        ("search", (FIRST, "cat\n" * 1001), "These are 1001 lines: search at most 1000 at a time."),
    ],
)
def test_texts_that_cannot_be_used_are_refused(app, encoders, function, texts, said):
    models = encoders if function == "similarity" else encoders[0]
    with pytest.raises(app.InputError, match=f"^{re.escape(said)}$"):
        getattr(app, function)(models, *texts)


def test_a_sentence_that_would_be_cut_is_refused_and_the_longest_is_not(app, encoders):
    """The limit is the model's: 64 tokens, two of them its own, and eight more of the prompt."""
    plain, prompted = encoders
    assert app.similarity([plain], "cat " * 62, "cat") and app.similarity([prompted], "cat " * 54, "cat")
    with pytest.raises(app.InputError, match=r"^“cat cat .*…” has 65 tokens, and .*plain \(simcse\) reads 64: "):
        app.similarity([plain], "cat " * 63, "cat")
    with pytest.raises(app.InputError, match=r"has 65 tokens, and .*prompted \(l2pcsr\) reads 64: shorten it\.$"):
        app.search(prompted, "cat", "cat " * 55)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [([], "name a model, such as runs/quickstart/best, or set MODELS"), (["/nowhere/at all"], "/nowhere/at all")],
)
def test_a_mistake_of_the_command_is_one_line(app, arguments, said, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["app.py", *arguments])
    monkeypatch.delenv("MODELS", raising=False)
    with pytest.raises(SystemExit, match="2"):
        app.main()
    *_, line = capsys.readouterr().err.splitlines()
    assert re.fullmatch(rf"app\.py: error: .*{said}.*", line)


def test_the_space_runs_the_gradio_it_was_tried_on():
    _, front, _ = (SPACE / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    front = yaml.safe_load(front)
    assert front["sdk"] == "gradio" and (SPACE / front["app_file"]).is_file()
    assert f"gradio=={front['sdk_version']}\n" in (SPACE / "requirements.txt").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(repositories, tmp_path_factory) -> str:
    """The address of the real page, started in an environment with `examples/space/requirements.txt`."""
    python = os.environ.get("CSEZOO_SPACE_PYTHON")
    if python is None:
        pytest.skip("THE SPACE'S PAGE NOT TESTED: set CSEZOO_SPACE_PYTHON to a Python that has its requirements")
    port = free_port()
    variables = {"GRADIO_SERVER_PORT": str(port), "MODELS": " ".join(map(str, repositories))}
    home = str(tmp_path_factory.mktemp("hf"))
    log = tmp_path_factory.mktemp("log") / "page.txt"
    with log.open("w", encoding="utf-8") as file:
        command = [python, str(SPACE / "app.py")]
        environment = {**os.environ, **variables, "PYTHONPATH": "", "HF_HOME": home}
        server = subprocess.Popen(command, cwd=home, env=environment, stdout=file, stderr=subprocess.STDOUT)
        address = f"http://127.0.0.1:{port}"
        while address not in log.read_text(encoding="utf-8"):
            assert server.poll() is None, log.read_text(encoding="utf-8")
            time.sleep(0.2)
        yield address
        server.terminate()
        server.wait()


def asked(page: str, function: str, *inputs: str) -> list[list]:
    """The table that the page's HTTP interface answers with."""
    call = f"{page}/gradio_api/call/{function}"
    body = json.dumps({"data": inputs}).encode()
    posted = urllib.request.Request(call, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(posted) as answer:
        event = json.load(answer)["event_id"]
    with urllib.request.urlopen(f"{call}/{event}") as answer:
        name, data = answer.read().decode().strip().splitlines()[-2:]
    assert name == "event: complete", data
    return json.loads(data.removeprefix("data: "))[0]["data"]


def test_the_page_answers_as_the_functions_do(page, app, encoders):
    names = [encoder.name for encoder in encoders]
    assert asked(page, "similarity", names[1], FIRST, SECOND) == app.similarity(encoders[1:], FIRST, SECOND)
    assert asked(page, "similarity_in_all", FIRST, SECOND) == app.similarity(encoders, FIRST, SECOND)
    text = "\n".join(SENTENCES[:5])
    assert asked(page, "search", names[0], FIRST, text) == app.search(encoders[0], FIRST, text)


def test_the_page_empties_the_table_at_a_mistake(page, encoders):
    assert asked(page, "search", encoders[0].name, "", FIRST) == []
    assert asked(page, "similarity_in_all", FIRST, "cat " * 63) == []


def test_the_page_keeps_to_itself(page):
    with urllib.request.urlopen(f"{page}/config") as answer:
        config = json.load(answer)
    assert not config["analytics_enabled"] and not config["run_history"] and config["stylesheets"] == []
