// A conversation over a collection: answers as they come, what they cite, and the plan of each prompt.

import { ApiError, DEFAULT_COLLECTION, events, get } from "./api.js";
import { drop, forget, fresh, idOf, keep, keepStopped, list, mayReplace, opened, rename, titleOf } from "./conversations.js";
import { failure, field, h, sends, toast } from "./dom.js";
import { saveJson, saveMarkdown } from "./exporting.js";
import { action, change, live } from "./live.js";
import { turnElement } from "./turn.js";

/** The open one, which another view and back does not close. The service has it, too: a reload finds it by the page's address. */
let current = fresh();
/** The collection that was chosen in this tab, which a reload keeps; and, for other tabs, the one that was asked last. */
const COLLECTION = "ragstone-collection";
/** `collection`: null as long as nobody chose, empty for none. */
const chosen = { collection: sessionStorage.getItem(COLLECTION), topK: undefined, reuse: "auto", maxTokens: 256, temperature: undefined, followsUp: true };
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

/** The page's address is that of the open conversation. */
function address() {
  const hash = current.id ? `#/ask/${current.id}` : "#/ask";
  if (location.hash !== hash) history.replaceState(null, "", hash);
}

export async function ask(view) {
  const { content, names: [wanted], signal } = view;
  const { data: [model] } = await get("/v1/models", signal);
  let missing = "";
  if (wanted && wanted !== current.id) {
    try {
      current = await opened(wanted, signal);
    } catch (error) {
      if (error.status !== 404) throw error;
      current = fresh();
      missing = h("p", { class: "hint", role: "alert" }, "This conversation is not here any more: it was deleted, or nobody has gone on with it for too long.");
    }
    // A turn that was stopped has none.
    const last = current.turns.findLast(({ collection }) => collection);
    if (last) choose(last.collection);
  }
  address();
  const question = h("textarea", { dir: "auto", rows: 2, "aria-label": "Question", placeholder: "Ask something. Enter sends, Shift and Enter begin a new line." });
  const control = {
    collection: h("select", { onchange: () => choose(control.collection.value) }),
    topK: h("input", { type: "number", min: 1, max: 1000, placeholder: "the model's", value: chosen.topK ?? "" }),
    reuse: select([["auto", "exact and blended"], ["exact", "exact only"], ["off", "compute all"]], chosen.reuse),
    maxTokens: h("input", { type: "number", min: 1, value: chosen.maxTokens }),
    temperature: h("input", { type: "number", min: 0, max: 2, step: 0.1, placeholder: "the model's", value: chosen.temperature ?? "" }),
    followsUp: h("input", { type: "checkbox", checked: chosen.followsUp }),
  };
  const turns = h("section", { "aria-label": "Conversation" });
  const send = h("button", { class: "main" }, "Ask");
  let running = null;
  /** Asks `text`; in the place of the turn `replaced`, where there is one. */
  const submit = async (text, replaced) => {
    for (const [name, input] of Object.entries(control)) chosen[name] = read(input);
    // Where there is none to choose, nobody chose none.
    choose(control.collection.length === 1 ? null : chosen.collection);
    running = new AbortController();
    signal.addEventListener("abort", () => running?.abort());
    send.textContent = "Stop";
    const isGone = await answer(text, { turns, acts, replaced, heading, isLeft: () => signal.aborted }, running.signal);
    running = null;
    send.textContent = "Ask";
    if (isGone) await refresh();
  };
  /** The same, or another question, once whoever asks agrees to what goes for it. */
  const anew = async (verb, turn, text, close) => {
    if (running) return toast("An answer is on its way. Stop it first.");
    const after = current.turns.slice(current.turns.indexOf(turn) + 1).filter(isAnswered(current)).length;
    if (!(await mayReplace(after, verb, signal))) return;
    close?.();
    await submit(text, turn);
  };
  const acts = { retry: (turn) => anew("Ask again", turn, turn.question), edit: (turn, text, close) => anew("Ask", turn, text, close) };
  const typed = (event) => {
    event.preventDefault();
    if (running) return running.abort();
    const text = question.value.trim();
    if (!text) return question.focus();
    question.value = "";
    return submit(text);
  };
  question.addEventListener("keydown", (event) => {
    if (sends(event)) typed(event);
  });
  const begin = () => {
    running?.abort();
    current = fresh();
    address();
    turns.replaceChildren();
    heading();
    side.refresh();
    question.focus();
  };
  const clear = h("button", { type: "button", onclick: begin }, "New conversation");
  // From the question the next stop is the button: which collection comes before, what is seldom changed after.
  const options = h("details", { class: "options", open: isOpen, ontoggle: () => (isOpen = options.open) }, h("summary", {}, "Options"),
    h("div", { class: "row" },
      field("Passages", control.topK), field("Stored KV", control.reuse), field("Tokens at most", control.maxTokens), field("Temperature", control.temperature),
      h("label", { class: "check" }, control.followsUp, " with the conversation so far")));
  const form = h("form", { class: "card", onsubmit: typed }, field("Collection", control.collection), question, h("div", { class: "row" }, send, clear), options);
  const empty = h("div");
  const refresh = await live(view, empty, async () => {
    const { data } = await get("/v1/collections", signal);
    const names = data.map(({ name }) => name);
    const options = [...names.map((name) => [name, name]), ["", "none: without passages"]];
    const { collection } = chosen;
    control.collection.replaceChildren(...choices(options, collection === "" || names.includes(collection) ? collection : usual(names)));
    return names.length ? [] : h("p", { class: "hint" }, "No collection yet: ", h("a", { href: "#/collections" }, "add documents"), ", or ask the model alone.");
  });
  const side = await list(view, () => current, (gone) => gone.id === current.id && begin());
  const head = h("div", { class: "heading" });
  const heading = () => head.replaceChildren(...headed(view, heading, begin));
  heading();
  for (const turn of current.turns) turns.append(shown(turn, acts));
  const note = model?.ragstone?.note;
  const left = h("div", {}, head, missing, empty, note ? h("p", { class: "hint" }, note) : "", turns, form);
  content.replaceChildren(side.element, left);
  question.focus();
}

/** What the conversation is called, and what can be done with it. */
function headed({ signal }, again, begin) {
  if (current.isKept ? !current.id : !current.turns.length) return [h("h1", {}, "Ask")];
  const title = titleOf(current);
  const saved = (save) => action({ class: "small" }, save === saveJson ? "Save as JSON" : "Save as Markdown", async () => {
    // As the service has it, where it has it: the page may know less of older turns.
    const { turns } = current.isKept ? await opened(current.id, signal) : current;
    return save === saveJson ? saveJson({ ...current, title }, turns) : saveMarkdown(title, turns);
  });
  const own = current.isKept ? [
    action({ class: "small" }, "Rename", async () => (await rename(current, signal)) && again()),
    saved(saveMarkdown), saved(saveJson),
    action({ class: "small danger" }, "Delete …", async () => (await drop(current, signal)) && begin()),
  ] : [saved(saveMarkdown), saved(saveJson), h("span", { class: "quiet" }, "It is not kept: the setting responses_days is 0.")];
  return [h("h1", { dir: "auto" }, current.isKept ? title : "Ask"), h("div", { class: "row tools" }, own)];
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

/** A turn that has ended. */
function shown(turn, acts) {
  const drawn = turnElement(turn, acts);
  turn.element = drawn.element;
  drawn.settle();
  return drawn.element;
}

/** Asks, and shows what comes. True where the collection is not there. */
async function answer(text, { turns, acts, replaced, heading, isLeft }, signal) {
  const conversation = current;
  const { collection, topK, reuse, maxTokens, temperature, followsUp } = chosen;
  const turn = { question: text, answer: "", status: "in_progress", collection: collection || null };
  const drawn = turnElement(turn, acts);
  turn.element = drawn.element;
  drawn.run();
  // What it takes the place of comes back where nothing is answered.
  const old = conversation.turns.splice(replaced ? conversation.turns.indexOf(replaced) : conversation.turns.length);
  const before = [...conversation.turns];
  conversation.turns.push(turn);
  old.forEach(({ element }) => element.remove());
  turns.append(drawn.element);
  drawn.element.scrollIntoView({ block: "nearest" });
  if (collection) localStorage.setItem(COLLECTION, collection);
  let [notice, isGone, replaces] = [null, false, undefined];
  try {
    await keep(conversation);
    const first = conversation.isKept && old.find(isAnswered(conversation));
    replaces = first ? await idOf(first) : undefined;
    const wanted = { reuse, explain: true, sampling: "model", ...(collection ? { collection, top_k: topK || undefined } : {}) };
    const said = before.filter(({ answer: earlier }) => earlier);
    const stream = async (isWithThose) => {
      const known = (isWithThose ? said : []).flatMap((earlier) => [{ role: "user", content: earlier.question }, { role: "assistant", content: earlier.answer }]);
      const place = conversation.isKept ? { input: text, conversation: { id: conversation.id, replaces, earlier: isWithThose } } : { input: [...known, { role: "user", content: text }], store: false };
      const body = { stream: true, temperature, max_output_tokens: maxTokens, ...place, ragstone: wanted };
      for await (const event of events("/v1/responses", body, signal)) {
        if (event.type === "response.output_text.delta") turn.answer += event.delta;
        if (event.type === "response.reasoning_text.delta") turn.thinks = true;
        if (event.response?.ragstone) settled(turn, event.response);
        drawn.grow();
      }
    };
    try {
      await stream(followsUp);
    } catch (error) {
      if (error.code !== "context_length_exceeded" || !followsUp || !said.length) throw error;
      notice = h("p", { class: "hint" }, "The conversation is longer than the model reads: this was asked without what was said before.");
      await stream(false);
    }
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    isGone = error.isNoCollection;
    notice = isGone ? noCollection(collection) : failure(error);
    turn.status = "failed";
  }
  if (turn.status === "in_progress") {
    Object.assign(turn, { status: "incomplete", isStopped: signal.aborted });
    if (!signal.aborted) notice = failure(new ApiError(0, { message: "The service broke off its answer. Is it still running?" }));
    if (turn.answer.trim() && conversation.isKept) turn.id = await keepStopped(conversation, turn, replaces).catch(() => undefined);
  }
  const has = isAnswered(conversation);
  if (!has(turn)) {
    conversation.turns.splice(-1, 0, ...old);
    if (drawn.element.isConnected) drawn.element.before(...old.map(({ element }) => element));
    // One in which nothing was answered is none.
    if (conversation.isKept && !conversation.turns.some(has)) {
      forget(conversation);
      conversation.id = null;
    }
  }
  if (conversation.id) conversation.title ??= text.replace(/\s+/g, " ");
  drawn.settle(notice);
  if (current === conversation && !isLeft()) {
    address();
    heading();
  }
  // The list has it from now on.
  if (has(turn)) await change(async () => {});
  return isGone;
}

/** Whether the service has a turn, or, of a conversation that is not kept, the page has an answer. */
function isAnswered({ isKept }) {
  return ({ id, response_id: response, answer: text, status }) => Boolean(id || response || (text && status !== "failed" && !isKept));
}

/** What the end of an answer says of it. */
function settled(turn, { id, status, ragstone }) {
  const { citations, grounding, report } = ragstone;
  Object.assign(turn, { response_id: id, status, citations, grounding, report, created_at: Math.round(Date.now() / 1000) });
}

/** Here there is a list to choose from. */
function noCollection(name) {
  return h("div", { class: "failure", role: "alert" }, h("p", {}, `There is no collection ${name} any more. Choose another one under Collection and ask again, or `, h("a", { href: "#/collections" }, "add documents"), "."));
}
