// Uses a running ragstone through the official client: node openai_client.mjs http://127.0.0.1:PORT/v1
// OPENAI_TEST_NODE names the folder that has node_modules.
import assert from "node:assert/strict";
import { createRequire } from "node:module";

const OpenAI = createRequire(`${process.env.OPENAI_TEST_NODE}/package.json`)("openai");
const client = new OpenAI({ baseURL: process.argv[2], apiKey: "unused", maxRetries: 0 });
const model = (await client.models.list()).data[0].id;
const messages = [{ role: "user", content: "Whose boats?" }];
const parameters = {
  type: "object",
  properties: { town: { type: "string", maxLength: 5 } },
  required: ["town"],
  additionalProperties: false,
};

// Structured output, whole and streamed.
const response_format = { type: "json_schema", json_schema: { name: "town", schema: parameters, strict: true } };
const options = { model, messages, response_format, seed: 2, max_tokens: 200 };
const whole = await client.chat.completions.create(options);
assert.deepEqual(Object.keys(JSON.parse(whole.choices[0].message.content)), ["town"]);
let text = "";
for await (const chunk of await client.chat.completions.create({ ...options, stream: true })) {
  text += chunk.choices[0]?.delta?.content ?? "";
}
assert.equal(text, whole.choices[0].message.content);

// A tool that must be called.
const tools = [{ type: "function", function: { name: "find_boats", parameters } }];
const forced = { model, messages, tools, tool_choice: "required", parallel_tool_calls: false, seed: 1, max_tokens: 200 };
const called = (await client.chat.completions.create(forced)).choices[0];
assert.equal(called.finish_reason, "tool_calls");
const [call] = called.message.tool_calls;
assert.equal(call.function.name, "find_boats");
const final = await client.chat.completions.stream(forced).finalChatCompletion();
assert.equal(final.choices[0].message.tool_calls[0].function.arguments, call.function.arguments);

// Responses.
const made = await client.responses.create({ model, input: "Whose boats?", max_output_tokens: 6, temperature: 0 });
let streamed = "";
const events = await client.responses.create({ model, input: "Whose boats?", max_output_tokens: 6, temperature: 0, stream: true });
for await (const event of events) {
  if (event.type === "response.output_text.delta") streamed += event.delta;
}
assert.equal(streamed, made.output_text);
await assert.rejects(
  client.responses.create({ model, input: "a", background: true }),
  (error) => error.status === 400 && error.param === "background",
);

// Several answers, a beam search, usage at the end of a stream, embeddings, and what is refused.
const prompt = [5, 6, 7];
const several = await client.completions.create({ model, prompt, max_tokens: 5, n: 3, temperature: 1, seed: 4, logit_bias: { 9: -100 } });
assert.deepEqual(several.choices.map((choice) => choice.index), [0, 1, 2]);
const searched = await client.completions.create({ model, prompt, max_tokens: 5, n: 2, use_beam_search: true, length_penalty: 1.5 });
assert.notEqual(searched.choices[0].text, searched.choices[1].text);
let usage;
for await (const chunk of await client.completions.create({ model, prompt, max_tokens: 5, stream: true, stream_options: { include_usage: true } })) {
  usage = chunk.usage ?? usage;
}
assert.equal(usage.prompt_tokens, 3);
const embedder = (await client.models.list()).data[1].id;
const embedded = await client.embeddings.create({ model: embedder, input: ["a lamp", "a mill"] });
assert.equal(embedded.data.length, 2);
assert.ok(Math.abs(Math.hypot(...embedded.data[0].embedding) - 1) < 1e-4);
await assert.rejects(client.completions.create({ model, prompt, n: "two" }), (error) => error.status === 400 && error.param === "n");
console.log("ok");
