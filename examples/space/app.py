"""How similar are two sentences, and which lines are nearest in meaning to a query? A page for the browser.

pip install -r examples/space/requirements.txt && python examples/space/app.py runs/quickstart/best

Models are directories or Hub ids; without arguments, as in a Space of Hugging Face, those of the environment variable
`MODELS`, separated by spaces. The server's address is gradio's own `GRADIO_SERVER_NAME` and `GRADIO_SERVER_PORT`.
"""

import argparse
import html
import os

from transformers import AutoModel, AutoTokenizer

MOST_LINES = 1000  # a few seconds on two processor cores
FIRST, SECOND = "The farmer sold the pigs.", "The pigs were purchased by the farmer."
LINES = """\
The farmer purchased the pigs in the shed.
The zookeeper fed the lions near the pond.
An anxious critic complimented the wine.
A cyclist wrecked the motorbike near the station.
The gardener watered the roses in the morning."""


class InputError(ValueError):
    """What was typed cannot be used; the message is for whoever typed it."""


class Encoder:
    """A checkpoint of the zoo, loaded once."""

    def __init__(self, source: str):
        self.model = AutoModel.from_pretrained(source, trust_remote_code=True)
        self.tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=True)
        self.name = f"{source} ({self.model.config.model_type})"

    def encode(self, texts: list[str]):
        """Vectors of length one, a numpy array `(len(texts), H)`.

        Raises:
            InputError: a text is longer than the model reads.
        """
        most = self.tokenizer.model_max_length
        for text, ids in zip(texts, self.tokenizer(texts, verbose=False)["input_ids"], strict=True):
            if len(ids) > most:
                raise InputError(f"“{text[:40]}…” has {len(ids)} tokens, and {self.name} reads {most}: shorten it.")
        return self.model.encode(texts, self.tokenizer, normalize_embeddings=True)


def similarity(encoders: list[Encoder], first: str, second: str) -> list[list]:
    """Rows of a cosine and the name of the model that gives it.

    Raises:
        InputError: a sentence is empty or too long.
    """
    if not first.strip() or not second.strip():
        raise InputError("Type two sentences.")
    rows = []
    for encoder in encoders:
        one, other = encoder.encode([first.strip(), second.strip()])
        rows.append([round(float(one @ other), 3), encoder.name])
    return rows


def search(encoder: Encoder, query: str, text: str) -> list[list]:
    """Rows of rank, cosine with the query, and line: the nearest first, equal ones in the order they were given.

    Raises:
        InputError: there is no query or no line, there are too many, or one is too long.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not query.strip() or not lines:
        raise InputError("Type a query, and the sentences to search, one a line.")
    if len(lines) > MOST_LINES:
        raise InputError(f"These are {len(lines)} lines: search at most {MOST_LINES} at a time.")
    vectors = encoder.encode([query.strip(), *lines])
    cosines = vectors[1:] @ vectors[0]
    ranked = (-cosines).argsort(kind="stable")
    return [[rank, round(float(cosines[at]), 3), lines[at]] for rank, at in enumerate(ranked, start=1)]


def interface(encoders: dict[str, Encoder]):
    """The page, as `gradio.Blocks`.

    Args:
        encoders: by the names to pick them by.
    """
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    import gradio as gr

    def answered(function):
        """What is wrong with the input is shown as a notice, and the table is emptied."""

        def answer(*inputs):
            try:
                return function(*inputs)
            except InputError as error:
                gr.Warning(html.escape(str(error)))  # a notice may hold HTML, and this one quotes what was typed
                return []

        return answer

    def table(headers: list[str], datatype: list[str], widths: list[str]):
        return gr.Dataframe(
            headers=headers, datatype=datatype, column_widths=widths, wrap=True, buttons=[], interactive=False
        )

    one_at_a_time = "models"  # a tokenizer is not safe in two threads
    with gr.Blocks(title="Sentence embeddings") as page:
        gr.Markdown("# Sentence embeddings\nSentences of like meaning have vectors of high cosine, 1 at most.")
        model = gr.Dropdown(list(encoders), label="Model", filterable=False, interactive=len(encoders) > 1)
        with gr.Tab("Similarity"):
            first = gr.Textbox(FIRST, label="First sentence", max_lines=3)
            second = gr.Textbox(SECOND, label="Second sentence", max_lines=3)
            with gr.Row():
                compare = gr.Button("Compare", variant="primary")
                compare_all = gr.Button("Compare in all models", visible=len(encoders) > 1)
            cosines = table(["cosine", "model"], ["number", "str"], ["25%", "75%"])
        with gr.Tab("Search"):
            query = gr.Textbox("Who bought the animals?", label="Query", max_lines=3)
            lines = gr.Textbox(LINES, label="Sentences, one a line", lines=6, max_lines=12)
            find = gr.Button("Search", variant="primary")
            ranked = table(["#", "cosine", "sentence"], ["number", "number", "str"], ["12%", "25%", "63%"])
        gr.on(
            [compare.click, first.submit, second.submit],
            answered(lambda name, first, second: similarity([encoders[name]], first, second)),
            [model, first, second],
            cosines,
            api_name="similarity",
            concurrency_id=one_at_a_time,
        )
        compare_all.click(
            answered(lambda first, second: similarity(list(encoders.values()), first, second)),
            [first, second],
            cosines,
            api_name="similarity_in_all",
            concurrency_id=one_at_a_time,
        )
        gr.on(
            [find.click, query.submit],
            answered(lambda name, query, lines: search(encoders[name], query, lines)),
            [model, query, lines],
            ranked,
            api_name="search",
            concurrency_id=one_at_a_time,
        )
    return page


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    named = os.environ.get("MODELS", "").split()
    parser.add_argument("models", nargs="*", default=named, help="directories or Hub ids; else those of MODELS")
    sources = parser.parse_args().models
    if not sources:
        parser.error("name a model, such as runs/quickstart/best, or set MODELS")
    try:
        encoders = [Encoder(source) for source in sources]
    except OSError as error:
        parser.error(str(error).splitlines()[0])
    interface({encoder.name: encoder for encoder in encoders}).launch(share=False, run_history=False)


if __name__ == "__main__":
    main()
