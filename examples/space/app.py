"""A web page that compares two sentences, and searches lines for those closest in meaning to a query.

pip install -c constraints.txt -r examples/space/requirements.txt && python examples/space/app.py runs/quickstart/best

Models are directories or Hub ids. Without arguments, as in a Space of Hugging Face, they are read from the environment
variable `MODELS`, separated by spaces. `GRADIO_SERVER_NAME` and `GRADIO_SERVER_PORT` set the server's address.
"""

import argparse
import html
import os

from sentence_transformers import SentenceTransformer

MOST_LINES = 1000  # a few seconds on two processor cores
FIRST, SECOND = "The farmer sold the pigs.", "The pigs were purchased by the farmer."
LINES = """\
The farmer purchased the pigs in the shed.
The zookeeper fed the lions near the pond.
An anxious critic complimented the wine.
A cyclist wrecked the motorbike near the station.
The gardener watered the roses in the morning."""


class InputError(ValueError):
    """An input that cannot be used. The message is shown to the user."""


class Encoder:
    """A model of the zoo, loaded once. No code of its repository is run."""

    def __init__(self, source: str):
        self.model = SentenceTransformer(source, trust_remote_code=False)
        config = self.model[0].auto_model.config.to_dict()
        self.name = f"{source} ({config.get('csezoo', {}).get('method', config['model_type'])})"

    def encode(self, texts: list[str]):
        """Embed texts as vectors of length 1, a numpy array `(len(texts), H)`.

        Raises:
            InputError: a text is longer than the model's limit.
        """
        tokenizer = self.model.tokenizer
        most = tokenizer.model_max_length
        for text, ids in zip(texts, tokenizer(texts, verbose=False)["input_ids"], strict=True):
            if len(ids) > most:
                raise InputError(f"“{text[:40]}…” has {len(ids)} tokens, and {self.name} reads {most}: shorten it.")
        return self.model.encode(texts, normalize_embeddings=True, show_progress_bar=False)


def similarity(encoders: list[Encoder], first: str, second: str) -> list[list]:
    """Return a row for each model: the cosine and the model's name.

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
    """Return a row for each line: rank, cosine with the query, and the line. Equal cosines keep the given order.

    Raises:
        InputError: there is no query or no line, there are too many, or one is too long.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not query.strip() or not lines:
        raise InputError("Type a query, and the sentences to search, one per line.")
    if len(lines) > MOST_LINES:
        raise InputError(f"These are {len(lines)} lines: search at most {MOST_LINES} at a time.")
    vectors = encoder.encode([query.strip(), *lines])
    cosines = vectors[1:] @ vectors[0]
    ranked = (-cosines).argsort(kind="stable")
    return [[rank, round(float(cosines[at]), 3), lines[at]] for rank, at in enumerate(ranked, start=1)]


def interface(encoders: dict[str, Encoder]):
    """Build the page as `gradio.Blocks`.

    Args:
        encoders: by the name in the menu.
    """
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    import gradio as gr

    def answered(function):
        """Show an input error as a notice, and empty the table."""

        def answer(*inputs):
            try:
                return function(*inputs)
            except InputError as error:
                gr.Warning(html.escape(str(error)))  # a notice is HTML, and this one quotes the input
                return []

        return answer

    def table(headers: list[str], datatype: list[str], widths: list[str]):
        return gr.Dataframe(
            headers=headers, datatype=datatype, column_widths=widths, wrap=True, buttons=[], interactive=False
        )

    one_at_a_time = "models"  # tokenizers are not thread-safe
    with gr.Blocks(title="Sentence embeddings") as page:
        gr.Markdown(
            "# Sentence embeddings\nThe vectors of sentences with similar meaning have a high cosine, at most 1."
        )
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
            lines = gr.Textbox(LINES, label="Sentences, one per line", lines=6, max_lines=12)
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
    parser.add_argument("models", nargs="*", default=named, help="directories or Hub ids (default: those in MODELS)")
    sources = parser.parse_args().models
    if not sources:
        parser.error("name a model, such as runs/quickstart/best, or set MODELS")
    try:
        encoders = [Encoder(source) for source in sources]
    except (OSError, ValueError) as error:
        parser.error(str(error).splitlines()[0])
    interface({encoder.name: encoder for encoder in encoders}).launch(share=False, run_history=False)


if __name__ == "__main__":
    main()
