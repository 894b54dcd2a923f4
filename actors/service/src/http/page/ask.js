// A conversation over a collection: answers as they come, what they cite, and the plan of each prompt.

import { ApiError, DEFAULT_COLLECTION, events, get } from "./api.js";
import { failure, field, h } from "./dom.js";
import { live } from "./live.js";
import { plan } from "./plan.js";

/** Kept while the tab lives, so that another view and back loses nothing. */
const conversation = [];
/** The collection that was chosen in this tab, which a reload keeps; and, for other tabs, the one that was asked last. */
const COLLECTION = "ragstone-collection";
/** `collection`: null as long as nobody chose, empty for none. */
const chosen = { collection: sessionStorage.getItem(COLLECTION), topK: undefined, reuse: "auto", maxTokens: 256, temperature: undefined, followsUp: false };
let isOpen = false;

function choose(collection) {
  chosen.collection = collection;
  if (collection === null) sessionStorage.removeItem(COLLECTION);
  else sessionStorage.setItem(COLLECTION, collection);
}

/** The collection of whoever chose none: the usual one, the only one, the one that was asked last, any. */
function usual(names) {
  const last = localStorage.getItem(COLLECTION);
  if (names.includes(DEFAULT_COLLECTION)) return DEFAULT_COLLECTION;
  return names.includes(last) ? last : names[0] ?? "";
}

export async function ask(view) {
  const { content, signal } = view;
  const { data: [model] } = await get("/v1/models", signal);
  const question = h("textarea", { dir: "auto", rows: 2, "aria-label": "Question", placeholder: "Ask something. Enter sends, Shift and Enter begin a new line." });
  const control = {
    collection: h("select", { onchange: () => choose(control.collection.value) }),
    topK: h("input", { type: "number", min: 1, max: 1000, placeholder: "the model's", value: chosen.topK ?? "" }),
    reuse: select([["auto", "exact and blended"], ["exact", "exact only"], ["off", "compute all"]], chosen.reuse),
    maxTokens: h("input", { type: "number", min: 1, value: chosen.maxTokens }),
    temperature: h("input", { type: "number", min: 0, max: 2, step: 0.1, placeholder: "the model's", value: chosen.temperature ?? "" }),
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
    choose(control.collection.length === 1 ? null : chosen.collection);
    question.value = "";
    running = new AbortController();
    signal.addEventListener("abort", () => running?.abort());
    send.textContent = "Stop";
    const isGone = await answer(text, turns, running.signal);
    finish();
    if (isGone) await refresh();
  };
  question.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) submit(event);
  });
  const clear = h("button", { type: "button", onclick: () => { running?.abort(); conversation.length = 0; turns.replaceChildren(); question.focus(); } }, "New conversation");
  // From the question the next stop is the button: which collection comes before, what is seldom changed after.
  const options = h("details", { class: "options", open: isOpen, ontoggle: () => (isOpen = options.open) }, h("summary", {}, "Options"),
    h("div", { class: "row" },
      field("Passages", control.topK), field("Stored KV", control.reuse), field("Tokens at most", control.maxTokens), field("Temperature", control.temperature),
      h("label", { class: "check" }, control.followsUp, " with the conversation so far")));
  const form = h("form", { class: "card", onsubmit: submit }, field("Collection", control.collection), question, h("div", { class: "row" }, send, clear), options);
  const empty = h("div");
  const refresh = await live(view, empty, async () => {
    const { data } = await get("/v1/collections", signal);
    const names = data.map(({ name }) => name);
    const options = [...names.map((name) => [name, name]), ["", "none: without passages"]];
    const { collection } = chosen;
    control.collection.replaceChildren(...choices(options, collection === "" || names.includes(collection) ? collection : usual(names)));
    return names.length ? [] : h("p", { class: "hint" }, "No collection yet: ", h("a", { href: "#/collections" }, "add documents"), ", or ask the model alone.");
  });
  const note = model?.ragstone?.note;
  content.replaceChildren(h("h1", {}, "Ask"), empty, note ? h("p", { class: "hint" }, note) : "", turns, form);
  question.focus();
}

function read(input) {
  if (input.type === "checkbox") return input.checked;
  if (input.type === "number") return input.value === "" ? undefined : Number(input.value);
  return input.value;
}

function select(options, value) {
  return h("select", {}, choices(options, value));
}

function choices(options, value) {
  return options.map(([name, text]) => h("option", { value: name, selected: name === value }, text));
}

/** Asks, and shows what comes. True where the collection is not there. */
async function answer(text, turns, signal) {
  const said = h("p", { class: "answer", dir: "auto", "aria-live": "polite" });
  const below = h("div");
  const element = h("article", { class: "card turn running" }, h("p", { class: "question", dir: "auto" }, text), said, below);
  const turn = { question: text, answer: "", element };
  const before = conversation.filter((earlier) => chosen.followsUp && earlier.answer).flatMap((earlier) => [{ role: "user", content: earlier.question }, { role: "assistant", content: earlier.answer }]);
  conversation.push(turn);
  turns.append(element);
  element.scrollIntoView({ block: "nearest" });
  const { collection, topK, reuse, maxTokens, temperature } = chosen;
  if (collection) localStorage.setItem(COLLECTION, collection);
  const wanted = { reuse, explain: true, sampling: "model", ...(collection ? { collection, top_k: topK || undefined } : {}) };
  const body = { stream: true, temperature, max_tokens: maxTokens, messages: [...before, { role: "user", content: text }], ragstone: wanted };
  let isGone = false;
  try {
    for await (const event of events("/v1/chat/completions", body, signal)) {
      const [choice] = event.choices ?? [];
      turn.answer += choice?.delta?.content ?? "";
      said.textContent = turn.answer.trimStart();
      if (event.ragstone) below.replaceChildren(citations(event.ragstone, collection), details(event.ragstone, choice));
    }
    if (signal.aborted) below.append(h("p", { class: "quiet" }, "Stopped."));
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    isGone = error.isNoCollection;
    below.replaceChildren(isGone ? noCollection(collection) : failure(error));
  }
  element.classList.remove("running");
  return isGone;
}

/** Here there is a list to choose from. */
function noCollection(name) {
  return h("div", { class: "failure", role: "alert" }, h("p", {}, `There is no collection ${name} any more. Choose another one under Collection and ask again, or `, h("a", { href: "#/collections" }, "add documents"), "."));
}

const NOTHING = {
  said: "No passage is about this; no model was asked.",
  without_passages: "No passage is about this: the answer is the model's own, without your documents.",
  as_usual: "No passage seems to be about this: the answer stands on the nearest ones.",
};

function details({ report, citations: cited }, choice) {
  const { nothing_found: nothing } = report;
  const none = nothing && h("p", { class: "hint" }, NOTHING[nothing.answered]);
  if (nothing?.answered === "said") return h("div", {}, none);
  const cut = choice?.finish_reason === "length" && h("p", { class: "quiet" }, "Cut off: it has as many tokens as were asked for.");
  return h("div", {}, none || "", cut || "", h("details", { open: true }, h("summary", {}, "The prompt's plan"), plan(report, cited)));
}

/** What the answer stands on: its words were looked for in the passages. */
function grounds({ state, passages, missing = [] }) {
  if (state === "supported") return h("p", { class: "quiet" }, `The answer's words are in ${passages.length > 1 ? "passages" : "passage"} ${passages.join(" and ")}.`);
  if (state === "not_in_passages") return h("p", { class: "hint" }, "None of the passages answers it, the model says.");
  return h("p", { class: "hint" }, missing.length ? `In none of the passages: ${missing.join(", ")}.` : "Too few of the answer's words are in the passages.");
}

function citations({ citations: cited, grounding }, collection) {
  if (cited.length === 0) return h("span");
  const place = (other) => other.source || other.title || other.document_id;
  const item = ({ number, title, source, page, text, document_id: id, score, similarity, changed, also_in: others = [] }) => h("li", { class: grounding?.passages.includes(number) ? "ground" : "" },
    h("details", {},
      h("summary", {}, h("bdi", {}, title || source || id || "passage"), page ? h("span", { class: "quiet" }, ` page ${page}`) : "", score !== null && score !== undefined ? h("span", { class: "quiet", title: similarity === undefined ? "" : `similarity ${similarity.toFixed(2)}` }, ` ${score.toFixed(2)}`) : "",
        changed ? h("span", { class: "quiet" }, ` ${changed.slice(0, 10)}`) : ""),
      h("p", { class: "passage", dir: "auto" }, text),
      others.length ? h("p", { class: "quiet" }, `The same text is in ${others.map(place).join(", ")}.`) : "",
      id && collection ? h("a", { href: `#/collections/${encodeURIComponent(collection)}/${encodeURIComponent(id)}?${new URLSearchParams({ passage: text })}` }, "Open in its document") : ""));
  return h("div", {}, grounding ? grounds(grounding) : "", h("h2", {}, "Passages"), h("ol", { class: "citations" }, [...cited].sort((one, other) => one.number - other.number).map(item)));
}
