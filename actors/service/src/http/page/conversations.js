// Conversations that the service keeps: which there are, their turns, their names, their end.

import { at, get, post, remove, token } from "./api.js";
import { confirmed, counted, h, named, toast } from "./dom.js";
import { action, change, live } from "./live.js";

const LISTED = 50;
const TURNS = 100;
/** As wide as the style sheet has the list beside the answers. */
const IS_WIDE = matchMedia("(min-width: 60rem)");

/** One that nobody has asked anything in yet. `isKept`: the service keeps it, as far as that is known. */
export function fresh() {
  return { id: null, title: null, isKept: true, turns: [] };
}

/** What it is called. */
export function titleOf({ title }) {
  return title ?? "Without a name";
}

/** One that is kept, with its turns, the oldest first. */
export async function opened(id, signal) {
  const { title } = await get(at`/v1/conversations/${id}`, signal);
  return { id, title: title ?? null, isKept: true, turns: await turnsOf(id, signal) };
}

async function turnsOf(id, signal) {
  const turns = [];
  for (let after = ""; ; ) {
    const { data, has_more: more, last_id: last } = await get(`${at`/v1/conversations/${id}/turns`}?order=asc&limit=${TURNS}${after}`, signal);
    turns.push(...data);
    if (!more) return turns;
    after = `&after=${encodeURIComponent(last)}`;
  }
}

/** Has the service keep a conversation from now on, or notes that it keeps none. */
export async function keep(conversation) {
  if (conversation.id || !conversation.isKept) return;
  try {
    conversation.id = (await post("/v1/conversations", {})).id;
  } catch (error) {
    // The setting responses_days is 0.
    if (error.status !== 400) throw error;
    conversation.isKept = false;
  }
}

/** Keeps as much of an answer as came before it was stopped; the turn's id. `replaces` is the turn in whose place it stands. */
export async function keepStopped({ id }, { question, answer, collection }, replaces) {
  const items = [{ role: "user", content: question }, { role: "assistant", content: answer, status: "incomplete" }];
  const { data } = await change(() => post(at`/v1/conversations/${id}/items`, { items, replaces, collection }));
  return data[0].id;
}

/** The id of a turn, which nobody needs until another one is to take its place. */
export async function idOf(turn) {
  turn.id ??= (await get(`${at`/v1/responses/${turn.response_id}/input_items`}?order=asc&limit=1`)).data[0].id;
  return turn.id;
}

/** Asks for another name. Whether there is one. */
export async function rename(conversation, signal) {
  const name = await named("What this conversation is called", conversation.title ?? "", "Rename", signal);
  if (!name) return false;
  const path = at`/v1/conversations/${conversation.id}`;
  await change(async () => {
    const { metadata } = await get(path);
    conversation.title = (await post(path, { metadata: { ...metadata, title: name } })).title;
  });
  return true;
}

/** Asks whether it is to go. Whether it is gone. */
export async function drop(conversation, signal) {
  const name = titleOf(conversation);
  if (!(await confirmed(`Delete the conversation “${name}” and its answers? This cannot be undone.`, "Delete", signal))) return false;
  await change(() => remove(`${at`/v1/conversations/${conversation.id}`}?responses=true`));
  toast("The conversation is deleted.");
  return true;
}

/** One in which nothing was answered is none. */
export function forget({ id }) {
  if (id) change(() => remove(at`/v1/conversations/${id}`)).catch(() => {});
}

/** The list beside the answers. `current` says which is open, `gone` hears of one that was deleted. */
export async function list(view, current, gone) {
  const place = h("div");
  let shown = LISTED;
  const refresh = await live(view, place, async () => {
    const found = token.get() && (await read(shown, view.signal));
    if (!found) return h("p", { class: "quiet" }, "The list is for the data folder's owner and for keys; the address of this page finds a conversation again.");
    // What nobody has asked anything in has no title: it is begun with its first question.
    const [data, more] = [found.data.filter(({ title }) => title), found.more];
    if (!data.length) return h("p", { class: "quiet" }, "None yet. What you ask is kept here.");
    const item = (one) => h("li", { class: one.id === current().id ? "open" : "" },
      h("a", { href: `#/ask/${one.id}`, dir: "auto", "aria-current": one.id === current().id && "true", title: new Date(1000 * one.created_at).toLocaleString() }, titleOf(one)),
      action({ class: "small quietly", "aria-label": `Delete the conversation ${titleOf(one)}`, title: "Delete …" }, "×", async () => (await drop(one, view.signal)) && gone(one)));
    const rest = more && h("button", { class: "small", onclick: () => { shown += LISTED; refresh(); } }, "Earlier ones");
    return [h("ul", { class: "listed" }, data.map(item)), rest];
  });
  const element = h("details", { class: "conversations", open: IS_WIDE.matches }, h("summary", {}, "Conversations"), place);
  // A narrow screen is for the answers; a wide one has room for both.
  IS_WIDE.addEventListener("change", () => (element.open = IS_WIDE.matches), { signal: view.signal });
  return { element: h("aside", { "aria-label": "Conversations" }, element), refresh };
}

/** The newest `most`, and whether there are more; null for whoever may not know. */
async function read(most, signal) {
  const found = [];
  for (let after = ""; ; ) {
    const page = await get(`/v1/conversations?limit=${Math.min(most - found.length, 100)}${after}`, signal).catch((error) => {
      if (error.status !== 401 && error.status !== 403) throw error;
      return null;
    });
    if (!page) return null;
    found.push(...page.data);
    if (!page.has_more || found.length >= most) return { data: found, more: page.has_more };
    after = `&after=${encodeURIComponent(page.last_id)}`;
  }
}

/** Asks whether what was said after a turn may go with it. */
export function mayReplace(after, verb, signal) {
  if (after === 0) return true;
  return confirmed(`${verb} here? What was said after it goes: ${counted(after, "question")} and ${after === 1 ? "its answer" : "their answers"}.`, verb, signal);
}
