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
  client.responses.create({ model, input: "a", store: true }),
  (error) => error.status === 400 && error.param === "store",
);
console.log("ok");
