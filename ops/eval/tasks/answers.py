"""Scores what is said in words."""


def hit(document, results):
    """Whether the answer has one of the words that count."""
    said = results[0].lower()
    return {"hit": float(any(word in said for word in document["answer"].split("|")))}
