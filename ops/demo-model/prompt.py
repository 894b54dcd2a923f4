"""The prompt template, piece by piece. Each piece ends with a newline (the question with `Answer:`) and the
tokenizer isolates newlines, so joining the pieces' token ids equals tokenizing the whole text.

    <s>Answer each question from the passages.
    Passage: {title} | {text}
    Question: {question}
    Answer:
"""

BOS = "<s>"
SYSTEM = "Answer each question from the passages.\n"


def passage(page):
    return f"Passage: {page['title']} | {page['text']}\n"


def question(text):
    return f"Question: {text}\nAnswer:"


def answer(text):
    return f" {text}"
