// A question and its answer: what it says, which passage each sentence stands on, and what can be done with it.

import { at, get } from "./api.js";
import { copied, h, sends, toast } from "./dom.js";
import { byNumber, marks, saveMarkdown } from "./exporting.js";
import { action } from "./live.js";
import { plan } from "./plan.js";

const NOTHING = {
  said: "No passage is about this; no model was asked.",
  without_passages: "No passage is about this: the answer is the model's own, without your documents.",
  as_usual: "No passage seems to be about this: the answer stands on the nearest ones.",
};

/** The element of a turn. `acts`: `retry` and `edit`, which ask anew in its place. */
export function turnElement(turn, acts) {
  const said = h("p", { class: "answer", dir: "auto", "aria-live": "polite" });
  const [asked, below, tools] = [h("div"), h("div"), h("div", { class: "row tools" })];
  const element = h("article", { class: "card turn" }, asked, said, tools, below);
  const grow = () => {
    said.textContent = turn.answer.trimStart() || (turn.thinks ? "Thinking …" : "");
  };
  /** It has ended: all that is known of it. */
  const settle = (notice) => {
    element.classList.remove("running");
    // It was read out as it came.
    said.removeAttribute("aria-live");
    said.replaceChildren(...sentences(turn, element));
    below.replaceChildren(...[notice, stopped(turn), nothing(turn), citations(turn), planOf(turn)].filter(Boolean));
    tools.replaceChildren(...buttons(turn, acts, edit));
  };
  const edit = () => {
    const input = h("textarea", { dir: "auto", rows: 2, value: turn.question, "aria-label": "The question, edited" });
    const close = () => {
      asked.replaceChildren(question(turn));
      tools.querySelector("button")?.focus({ preventScroll: true });
    };
    const send = (event) => {
      event.preventDefault();
      if (input.value.trim()) acts.edit(turn, input.value.trim(), close);
    };
    input.addEventListener("keydown", (event) => {
      if (sends(event)) send(event);
      if (event.key === "Escape") close();
    });
    asked.replaceChildren(h("form", { onsubmit: send }, input,
      h("div", { class: "row" }, h("button", { class: "small main" }, "Ask this instead"), h("button", { class: "small", type: "button", onclick: close }, "Cancel"),
        h("span", { class: "quiet" }, "It takes the place of this question, its answer, and what follows."))));
    input.focus();
  };
  asked.append(question(turn));
  return { element, grow, settle, run: () => element.classList.add("running") };
}

function question(turn) {
  return h("p", { class: "question", dir: "auto" }, turn.question);
}

function buttons(turn, acts, edit) {
  const copy = action({ class: "small" }, "Copy", async () => toast((await copied(turn.answer.trim())) ? "The answer is copied." : "This browser lets no page copy: mark the text instead."));
  return [
    turn.answer && copy,
    h("button", { type: "button", class: "small", onclick: () => acts.retry(turn) }, "Ask again"),
    h("button", { type: "button", class: "small", onclick: edit }, "Edit"),
    turn.answer && h("button", { type: "button", class: "small", onclick: () => saveMarkdown(turn.question, [turn]) }, "Save with sources"),
  ].filter(Boolean);
}

function stopped({ status, isStopped }) {
  if (status !== "incomplete") return null;
  return h("p", { class: "quiet" }, isStopped ? "Stopped." : "Not finished: it was stopped, or has as many tokens as were asked for.");
}

function nothing({ report }) {
  const found = report?.nothing_found;
  return found ? h("p", { class: "hint" }, NOTHING[found.answered]) : null;
}

/** The answer, with the numbers of the passages after each sentence that stands on some. */
function sentences(turn, element) {
  const show = (event, number) => {
    event.preventDefault();
    const item = element.querySelector(`.citations [data-number="${number}"]`);
    if (!item) return;
    item.querySelector("details").open = true;
    item.querySelector("summary").focus({ preventScroll: true });
    item.scrollIntoView({ block: "center" });
  };
  // A link within the page, though no address: it leads to what stands below.
  const mark = (number) => h("a", { class: "mark", href: location.hash || "#/ask", "aria-label": `passage ${number}`, onclick: (event) => show(event, number) }, number);
  const known = new Set((turn.citations ?? []).map(({ number }) => number));
  const piece = ({ text, passages }) => {
    if (!passages) return text;
    const numbers = passages.filter((number) => known.has(number));
    if (!numbers.length) return h("span", { class: "baseless", title: "In none of the passages" }, text);
    return [h("span", { class: "based" }, text), h("sup", {}, numbers.map(mark))];
  };
  return marks(turn.answer.trim(), turn.grounding).flatMap(piece).flat();
}

/** What the answer stands on as a whole: its words were looked for in the passages. */
function grounds({ state, passages, missing = [], sentences: told = [] }) {
  if (state === "not_in_passages") return h("p", { class: "hint" }, "None of the passages answers it, the model says.");
  const some = told.some(({ passages: own }) => own.length === 0) && told.some(({ passages: own }) => own.length > 0) && " What is underlined with dots is in none of them.";
  if (state === "supported") return h("p", { class: "quiet" }, `The answer's words are in ${passages.length > 1 ? "passages" : "passage"} ${passages.join(" and ")}.`, some);
  return h("p", { class: "hint" }, missing.length ? `In none of the passages: ${missing.join(", ")}.` : "Too few of the answer's words are in the passages.", some);
}

function citations({ citations: cited, grounding, collection, response_id: kept }) {
  if (!cited) return kept && collection ? h("p", { class: "quiet" }, "Its passages are not kept any more.") : null;
  if (cited.length === 0) return null;
  const place = (other) => other.source || other.title || other.document_id;
  const item = ({ number, title, source, page, text, document_id: id, score, similarity, changed, also_in: others = [] }) => h("li", { value: number, "data-number": number, class: grounding?.passages.includes(number) ? "ground" : "" },
    h("details", {},
      h("summary", {}, h("bdi", {}, title || source || id || "passage"), page ? h("span", { class: "quiet" }, ` page ${page}`) : "", score !== null && score !== undefined ? h("span", { class: "quiet", title: similarity === undefined ? "" : `similarity ${similarity.toFixed(2)}` }, ` ${score.toFixed(2)}`) : "",
        changed ? [" ", h("span", { class: "quiet tight" }, changed.slice(0, 10))] : ""),
      h("p", { class: "passage", dir: "auto" }, text),
      others.length ? h("p", { class: "quiet" }, `The same text is in ${others.map(place).join(", ")}.`) : "",
      id && collection ? h("a", { href: `#/collections/${encodeURIComponent(collection)}/${encodeURIComponent(id)}?${new URLSearchParams({ passage: text })}` }, "Open in its document") : ""));
  return h("div", {}, grounding ? grounds(grounding) : "", h("h2", {}, "Passages"), h("ol", { class: "citations" }, byNumber(cited).map(item)));
}

/** The prompt's plan; of an answer of another day it is fetched when somebody wants to see it. */
function planOf(turn) {
  const { report, response_id: id } = turn;
  if (report?.nothing_found?.answered === "said") return null;
  if (report) return h("details", { open: true }, h("summary", {}, "The prompt's plan"), plan(report, turn.citations ?? []));
  if (!id) return null;
  const place = h("div");
  const fetched = async () => {
    if (place.hasChildNodes()) return;
    place.replaceChildren(h("p", { class: "waiting" }, "Loading …"));
    try {
      const { ragstone } = await get(at`/v1/responses/${id}`);
      place.replaceChildren(plan(ragstone.report, ragstone.citations));
    } catch (error) {
      place.replaceChildren(h("p", { class: "quiet" }, error.status === 404 ? "It is not kept any more." : error.message));
    }
  };
  return h("details", { ontoggle: fetched }, h("summary", {}, "The prompt's plan"), place);
}
