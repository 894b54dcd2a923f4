// A conversation over a collection: answers as they come, what they cite, and the plan of each prompt.

import { ApiError, events, get } from "/page/api.js";
import { failure, field, h } from "/page/dom.js";
import { live } from "/page/live.js";
import { plan } from "/page/plan.js";

/** Kept while the tab lives, so that another view and back loses nothing. */
const conversation = [];
/** `collection`: null as long as nobody chose. */
const chosen = { collection: null, topK: 5, reuse: "auto", maxTokens: 256, temperature: 0, followsUp: false };

export async function ask(view) {
  const { content, signal } = view;
  const { data: [model] } = await get("/v1/models", signal);
  const question = h("textarea", { rows: 2, "aria-label": "Question", placeholder: "Ask something. Enter sends, Shift and Enter begin a new line." });
  const control = {
    collection: h("select", { onchange: () => (chosen.collection = control.collection.value) }),
    topK: h("input", { type: "number", min: 1, max: 1000, value: chosen.topK }),
    reuse: select([["auto", "exact and blended"], ["exact", "exact only"], ["off", "compute all"]], chosen.reuse),
    maxTokens: h("input", { type: "number", min: 1, value: chosen.maxTokens }),
    temperature: h("input", { type: "number", min: 0, max: 2, step: 0.1, value: chosen.temperature }),
    followsUp: h("input", { type: "checkbox", checked: chosen.followsUp }),
  };
  const turns = h("section", { "aria-label": "Conversation" }, conversation.map(({ element }) => element));
  const send = h("button", { class: "main" }, "Ask");
  let running = null;
  const finish = () => {
    running = null;
    send.textContent = "Ask";
  };
  const submit = async (event) => {
    event?.preventDefault();
    if (running) return running.abort();
    const text = question.value.trim();
    if (!text) return question.focus();
    for (const [name, input] of Object.entries(control)) chosen[name] = read(input);
    // Where there is none to choose, nobody chose none.
    if (control.collection.length === 1) chosen.collection = null;
    question.value = "";
    running = new AbortController();
    signal.addEventListener("abort", () => running?.abort());
    send.textContent = "Stop";
    await answer(text, turns, running.signal);
    finish();
  };
  question.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) submit(event);
  });
  const clear = h("button", { type: "button", onclick: () => { running?.abort(); conversation.length = 0; turns.replaceChildren(); question.focus(); } }, "New conversation");
  const form = h("form", { class: "card", onsubmit: submit }, question,
    h("div", { class: "row" },
      field("Collection", control.collection), field("Passages", control.topK), field("Stored KV", control.reuse),
      field("Tokens at most", control.maxTokens), field("Temperature", control.temperature),
      h("label", { class: "check" }, control.followsUp, " with the conversation so far"), send, clear));
  const empty = h("div");
  await live(view, empty, async () => {
    const { data } = await get("/v1/collections", signal);
    const names = data.map(({ name }) => name);
    const options = [...names.map((name) => [name, name]), ["", "none: without passages"]];
    const { collection } = chosen;
    control.collection.replaceChildren(...choices(options, collection === "" || names.includes(collection) ? collection : names[0] ?? ""));
    return names.length ? [] : h("p", { class: "hint" }, "No collection yet: ", h("a", { href: "#/collections" }, "add documents"), ", or ask the model alone.");
  });
  const demo = model?.id === "ragstone-demo" && h("p", { class: "hint" }, "The embedded demo model answers here: it knows a small invented world and nothing else. What it cites of your documents is right, what it says of them is not. Start the service with ", h("code", { class: "key" }, "--model"), " to take a real one.");
  content.replaceChildren(h("h1", {}, "Ask"), empty, demo || "", turns, form);
  question.focus();
}

function read(input) {
  if (input.type === "checkbox") return input.checked;
  return input.type === "number" ? Number(input.value) : input.value;
}

function select(options, value) {
  return h("select", {}, choices(options, value));
}

function choices(options, value) {
  return options.map(([name, text]) => h("option", { value: name, selected: name === value }, text));
}

async function answer(text, turns, signal) {
  const said = h("p", { class: "answer", "aria-live": "polite" });
  const below = h("div");
  const element = h("article", { class: "card turn running" }, h("p", { class: "question" }, text), said, below);
  const turn = { question: text, answer: "", element };
  const before = conversation.filter((earlier) => chosen.followsUp && earlier.answer).flatMap((earlier) => [{ role: "user", content: earlier.question }, { role: "assistant", content: earlier.answer }]);
  conversation.push(turn);
  turns.append(element);
  element.scrollIntoView({ block: "nearest" });
  const { collection, topK, reuse, maxTokens, temperature } = chosen;
  const wanted = { reuse, explain: true, ...(collection ? { collection, top_k: topK } : {}) };
  const body = { stream: true, temperature, max_tokens: maxTokens, messages: [...before, { role: "user", content: text }], ragstone: wanted };
  try {
    for await (const event of events("/v1/chat/completions", body, signal)) {
      const [choice] = event.choices ?? [];
      turn.answer += choice?.delta?.content ?? "";
      said.textContent = turn.answer.trimStart();
      if (event.ragstone) below.replaceChildren(citations(event.ragstone.citations, collection), details(event.ragstone.report, choice));
    }
    if (signal.aborted) below.append(h("p", { class: "quiet" }, "Stopped."));
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    below.replaceChildren(failure(error));
  }
  element.classList.remove("running");
}

function details(report, choice) {
  const cut = choice?.finish_reason === "length" && h("p", { class: "quiet" }, "Cut off: it has as many tokens as were asked for.");
  return h("div", {}, cut || "", h("details", { open: true }, h("summary", {}, "The prompt's plan"), plan(report)));
}

function citations(cited, collection) {
  if (cited.length === 0) return h("span");
  const place = (other) => other.source || other.title || other.document_id;
  const item = ({ title, source, text, document_id: id, score, also_in: others = [] }) => h("li", {},
    h("details", {},
      h("summary", {}, title || source || id || "passage", score !== null && score !== undefined ? h("span", { class: "quiet" }, ` ${score.toFixed(2)}`) : ""),
      h("p", { class: "passage" }, text),
      others.length ? h("p", { class: "quiet" }, `The same text is in ${others.map(place).join(", ")}.`) : "",
      id && collection ? h("a", { href: `#/collections/${encodeURIComponent(collection)}/${encodeURIComponent(id)}?${new URLSearchParams({ passage: text })}` }, "Open in its document") : ""));
  return h("div", {}, h("h2", {}, "Passages"), h("ol", { class: "citations" }, cited.map(item)));
}
