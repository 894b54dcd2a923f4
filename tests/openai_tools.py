"""Structured output, tools and responses through the official client: python openai_tools.py http://127.0.0.1:PORT/v1"""

import json
import sys

import openai

client = openai.OpenAI(base_url=sys.argv[1], api_key="unused", max_retries=0)
model = client.models.list().data[0].id
messages = [{"role": "user", "content": "Whose boats?"}]
schema = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 9}, "boats": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["name", "boats"],
    "additionalProperties": False,
}

# Structured output.
format = {"type": "json_schema", "json_schema": {"name": "boats", "schema": schema, "strict": True}}
whole = client.chat.completions.create(
    model=model, messages=messages, response_format=format, n=2, seed=3, logit_bias={"5": -1}, max_tokens=200
)
for choice in whole.choices:
    assert set(json.loads(choice.message.content)) == {"name", "boats"}, choice
assert whole.usage.prompt_tokens_details.cached_tokens == whole.model_extra["ragstone"]["report"]["tokens"]["exact"]

# A tool that must be called, whole and streamed.
parameters = {
    "type": "object",
    "properties": {"town": {"type": "string", "maxLength": 5}},
    "required": ["town"],
    "additionalProperties": False,
}
tools = [{"type": "function", "function": {"name": "find_boats", "parameters": parameters}}]
options = dict(model=model, messages=messages, tools=tools, tool_choice="required", parallel_tool_calls=False, seed=1, max_tokens=200)
made = client.chat.completions.create(**options).choices[0]
assert made.finish_reason == "tool_calls" and made.message.content is None, made
[call] = made.message.tool_calls
assert call.function.name == "find_boats" and set(json.loads(call.function.arguments)) == {"town"}, call
with client.chat.completions.stream(**options) as stream:
    final = stream.get_final_completion().choices[0]
assert final.finish_reason == "tool_calls"
assert final.message.tool_calls[0].function.arguments == call.function.arguments, final

# What it said goes back.
turns = messages + [made.message, {"role": "tool", "tool_call_id": call.id, "content": "Nine."}]
client.chat.completions.create(model=model, messages=turns, tools=tools, max_tokens=4)

# Responses: text, a schema, a function, and the events.
response = client.responses.create(model=model, input="Whose boats?", instructions="Be brief.", max_output_tokens=4, temperature=0)
assert response.status in ("completed", "incomplete") and response.usage.output_tokens <= 4, response
text = {"format": {"type": "json_schema", "name": "boats", "schema": schema, "strict": True}}
response = client.responses.create(model=model, input=[{"role": "user", "content": "Whose?"}], text=text, max_output_tokens=200)
assert set(json.loads(response.output_text)) == {"name", "boats"}, response
function = {"type": "function", "name": "find_boats", "parameters": parameters, "strict": True}
options = dict(model=model, tools=[function], tool_choice="required", parallel_tool_calls=False, max_output_tokens=200)
response = client.responses.create(input="Whose boats?", **options)
[item] = response.output
assert item.type == "function_call" and set(json.loads(item.arguments)) == {"town"}, response
output = {"type": "function_call_output", "call_id": item.call_id, "output": "Nine."}
turns = [{"role": "user", "content": "Whose boats?"}, item.model_dump(exclude_none=True), output]
pieces = []
with client.responses.stream(model=model, input=turns, max_output_tokens=6, temperature=0) as stream:
    for event in stream:
        if event.type == "response.output_text.delta":
            pieces.append(event.delta)
        if event.type in ("response.completed", "response.incomplete"):  # the client's own helper knows the first alone
            final = event.response
assert "".join(pieces) == final.output_text, (pieces, final)

try:
    client.responses.create(model=model, input="a", previous_response_id="resp_1")
    raise AssertionError("a response that is not there was gone on from")
except openai.BadRequestError as error:
    assert error.param == "previous_response_id", error

# Responses and conversations that are kept.
options = dict(model=model, max_output_tokens=4, temperature=0)
first = client.responses.create(input="Whose boats?", metadata={"topic": "boats"}, **options)
second = client.responses.create(input="And whose mill?", previous_response_id=first.id, **options)
assert second.usage.input_tokens > first.usage.input_tokens and second.previous_response_id == first.id, second
assert client.responses.retrieve(first.id).output_text == first.output_text
[item] = client.responses.input_items.list(second.id).data
assert item.content[0].text == "And whose mill?", item
client.responses.delete(first.id)
try:
    client.responses.retrieve(first.id)
    raise AssertionError("a deleted response is there")
except openai.NotFoundError:
    pass
conversation = client.conversations.create(items=[{"type": "message", "role": "user", "content": "Hello"}])
client.responses.create(input="Whose boats?", conversation=conversation.id, **options)
kept = list(client.conversations.items.list(conversation.id, limit=1, order="asc"))
assert [item.role for item in kept] == ["user", "user", "assistant"], kept
assert client.conversations.update(conversation.id, metadata={"a": "b"}).metadata == {"a": "b"}
added = client.conversations.items.create(conversation.id, items=[{"role": "user", "content": "More"}])
client.conversations.items.delete(added.data[0].id, conversation_id=conversation.id)
assert client.conversations.retrieve(conversation.id).id == conversation.id
assert client.conversations.delete(conversation.id).deleted
print("ok")
