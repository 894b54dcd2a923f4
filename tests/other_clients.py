"""Anthropic's and Ollama's official clients: python other_clients.py http://127.0.0.1:PORT COLLECTION. The model knows tools."""

import sys

import anthropic
import ollama

base, collection = sys.argv[1:]

# Anthropic: whole, with what was stored counted apart.
client = anthropic.Anthropic(base_url=base, api_key="unused", max_retries=0)
question = [{"role": "user", "content": "What does Calbet Works make?"}]
options = dict(model="claude-of-some-name", messages=question, max_tokens=6, system="Be brief.", extra_body={"temperature": 0})
whole = client.messages.create(**options)
assert whole.role == "assistant" and whole.content[0].type == "text" and whole.content[0].text, whole
assert whole.stop_reason in ("end_turn", "max_tokens") and whole.usage.output_tokens <= 6, whole
again = client.messages.create(**options).usage
assert again.cache_read_input_tokens > 0, again
assert again.input_tokens + again.cache_read_input_tokens == whole.usage.input_tokens + whole.usage.cache_read_input_tokens
counted = client.messages.count_tokens(model="default", messages=question, system="Be brief.").input_tokens
assert counted == again.input_tokens + again.cache_read_input_tokens, (counted, again)

# Streamed: the same text.
with client.messages.stream(**options) as stream:
    text = "".join(stream.text_stream)
    final = stream.get_final_message()
assert text == whole.content[0].text == final.content[0].text, (text, whole)
assert final.usage.output_tokens == whole.usage.output_tokens and final.stop_reason == whole.stop_reason

# A stop sequence says which it was.
first = whole.content[0].text[1]
stopped = client.messages.create(**options, stop_sequences=[first])
assert stopped.stop_reason == "stop_sequence" and stopped.stop_sequence == first, stopped

# Over a collection.
told = client.messages.create(**{**options, "extra_body": {"temperature": 0, "ragstone": {"collection": collection}}})
assert told.model_extra["ragstone"]["citations"], told

# A tool that must be called, whole and streamed, and its result.
schema = {"type": "object", "properties": {"town": {"type": "string", "maxLength": 5}}, "required": ["town"], "additionalProperties": False}
tools = [{"name": "find_boats", "description": "Finds boats.", "input_schema": schema}]
choice = {"type": "any", "disable_parallel_tool_use": True}
calling = dict(model="default", messages=question, tools=tools, tool_choice=choice, max_tokens=200)
called = client.messages.create(**calling)
assert called.stop_reason == "tool_use", called
[call] = [block for block in called.content if block.type == "tool_use"]
assert call.name == "find_boats" and set(call.input) == {"town"}, call
with client.messages.stream(**calling) as stream:
    [streamed] = [block for block in stream.get_final_message().content if block.type == "tool_use"]
assert set(streamed.input) == {"town"}, streamed
result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "Nine."}]}
client.messages.create(model="default", messages=[*question, {"role": "assistant", "content": called.content}, result], tools=tools, max_tokens=3)

# Errors are of its own classes.
for bad, error in [
    (dict(model="gpt-4"), anthropic.NotFoundError),
    (dict(messages=[]), anthropic.BadRequestError),
    (dict(messages=[{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "x"}}]}]), anthropic.BadRequestError),
]:
    try:
        client.messages.create(**{**options, **bad})
        raise SystemExit(f"{bad} was answered")
    except error as refused:
        assert refused.body["type"] == "error" and refused.body["error"]["message"], refused.body

# Ollama: what is here.
client = ollama.Client(host=base)
names = [model.model for model in client.list().models]
model = names[0]
assert model.endswith(":latest") and all(len(listed.digest) == 64 for listed in client.list().models), names
shown = client.show(model)
assert "completion" in shown.capabilities and "tools" in shown.capabilities, shown
assert any(key.endswith(".context_length") for key in shown.modelinfo), shown
assert [running.model for running in client.ps().models] == [model]

# A chat, whole and streamed, with the tag that its clients add.
settings = {"temperature": 0, "num_predict": 6}
whole = client.chat(model.removesuffix(":latest"), messages=question, options=settings)
assert whole.done and whole.message.content and whole.eval_count <= 6 and whole.prompt_eval_count > 0, whole
lines = list(client.chat(model, messages=question, options=settings, stream=True))
assert "".join(line.message.content for line in lines) == whole.message.content, lines
assert lines[-1].done and lines[-1].done_reason == whole.done_reason and lines[-1].total_duration >= lines[-1].eval_duration

# A prompt: in the template, and as it stands.
made = client.generate(model, "What does Calbet Works make?", options=settings)
assert made.done and made.response, made
raw = list(client.generate(model, "Calbet Works makes", raw=True, options=settings, stream=True))
assert raw[-1].done and "".join(line.response for line in raw), raw
assert raw[0].response.startswith(" "), raw
assert client.generate(model).done_reason == "load"
assert client.generate(model, keep_alive=0).done_reason == "unload"

# A schema, tools, vectors.
shape = client.chat(model, messages=question, format=schema, options={"num_predict": 200})
assert '"town"' in shape.message.content, shape
def find_boats(town: str) -> str:
    """Finds boats.

    Args:
      town: where
    """
client.chat(model, messages=question, tools=[find_boats], options=settings)
turns = [
    *question,
    {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "find_boats", "arguments": {"town": "Oslo"}}}]},
    {"role": "tool", "tool_name": "find_boats", "content": "Nine."},
]
client.chat(model, messages=turns, tools=[find_boats], options=settings)
vectors = client.embed("default", ["a lantern", "a kite"]).embeddings
assert len(vectors) == 2 and len(vectors[0]) > 100
assert client.embeddings("default", "a lantern").embedding[:4] == vectors[0][:4]

# Errors.
for bad in [lambda: client.chat("llama3.2", messages=question), lambda: client.embed("none", "a"), lambda: client.show("none")]:
    try:
        bad()
        raise SystemExit("a model that is not here answered")
    except ollama.ResponseError as refused:
        assert refused.status_code == 404 and "not served here" in refused.error, refused
