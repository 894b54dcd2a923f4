"""Uses a running ragstone through the official client: python openai_client.py http://127.0.0.1:PORT/v1"""

import sys

import openai

client = openai.OpenAI(base_url=sys.argv[1], api_key="unused", max_retries=0)

# Models.
models = [model.id for model in client.models.list()]
model = models[0]
assert client.models.retrieve(model).id == model

# Chat, whole and streamed, over a collection.
messages = [
    {"role": "system", "content": "Answer from the passages."},
    {"role": "user", "content": "What does Calbet Works make?"},
]
extension = {"ragstone": {"collection": "world", "top_k": 2}}
options = dict(model=model, messages=messages, temperature=0, max_tokens=12, extra_body=extension)
whole = client.chat.completions.create(**options)
text = whole.choices[0].message.content
assert whole.choices[0].finish_reason in ("stop", "length")
assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
assert len(whole.model_extra["ragstone"]["citations"]) == 2, whole

pieces, usage, report = [], None, None
for chunk in client.chat.completions.create(stream=True, stream_options={"include_usage": True}, **options):
    if chunk.choices:
        pieces.append(chunk.choices[0].delta.content or "")
    usage = chunk.usage or usage
    report = (chunk.model_extra or {}).get("ragstone") or report
assert "".join(pieces) == text, (pieces, text)
assert usage.completion_tokens == whole.usage.completion_tokens
assert report["report"]["tokens"]["exact"] > 0, report

# Log-probabilities.
scored = client.chat.completions.create(logprobs=True, top_logprobs=2, **options)
content = scored.choices[0].logprobs.content
assert len(content) == scored.usage.completion_tokens
assert all(len(token.top_logprobs) == 2 for token in content)

# Completions of text and of token ids.
completed = client.completions.create(model=model, prompt="The director of", max_tokens=5, temperature=0, logprobs=1)
assert len(completed.choices[0].logprobs.tokens) == completed.usage.completion_tokens
ids = client.completions.create(model=model, prompt=[5, 6, 7], max_tokens=5, temperature=0)
assert ids.usage.prompt_tokens == 3
streamed = client.completions.create(model=model, prompt=[5, 6, 7], max_tokens=5, temperature=0, stream=True)
assert "".join(chunk.choices[0].text for chunk in streamed) == ids.choices[0].text
several = client.completions.create(model=model, prompt=[5, 6, 7], max_tokens=5, temperature=0, n=3)
assert [choice.text for choice in several.choices] == [ids.choices[0].text] * 3
assert several.usage.completion_tokens == 3 * ids.usage.completion_tokens

# A beam search: as many answers as it is wide, best first, the same each time.
beams = dict(model=model, prompt=[5, 6, 7], max_tokens=5, n=3, extra_body={"use_beam_search": True, "length_penalty": 1.5})
searched = [choice.text for choice in client.completions.create(**beams).choices]
assert len(set(searched)) == 3, searched
assert searched == [choice.text for choice in client.completions.create(**beams).choices]

# Embeddings: the client asks for base64 unless told otherwise.
packed = client.embeddings.create(model=models[1], input=["a lamp", "a mill"])
plain = client.embeddings.create(model=models[1], input="a mill", encoding_format="float")
assert len(packed.data) == 2
assert max(abs(a - b) for a, b in zip(packed.data[1].embedding, plain.data[0].embedding)) < 1e-5


def fails(kind, call, **arguments):
    try:
        call(**arguments)
    except kind as error:
        return error
    raise AssertionError(f"{arguments} did not raise {kind.__name__}")


# Errors arrive as the client's own exceptions.
error = fails(openai.BadRequestError, client.chat.completions.create, model=model, messages=messages, n=99)
assert error.param == "n" and error.type == "invalid_request_error", error
fails(openai.NotFoundError, client.chat.completions.create, model="gpt-9", messages=messages)
error = fails(openai.BadRequestError, client.completions.create, model=model, prompt=[5] * 9000)
assert error.code == "context_length_exceeded", error
print("ok")
