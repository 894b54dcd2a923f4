// Answers and conversations as files, with what they stand on.

import { h } from "./dom.js";

/** Hands text over as a file. */
function save(name, kind, text) {
  const address = URL.createObjectURL(new Blob([text], { type: kind }));
  h("a", { href: address, download: name }).click();
  // The browser has taken it by then.
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}

/** A name that every system takes. */
function fileName(title, ending) {
  const plain = title.normalize("NFC").replace(/[^\p{L}\p{M}\p{N}]+/gu, "-").replace(/^-+|-+$/g, "");
  return `${[...plain].slice(0, 60).join("") || "conversation"}.${ending}`;
}

/** Saves turns as Markdown. */
export function saveMarkdown(title, turns) {
  save(fileName(title, "md"), "text/markdown", markdown(title, turns));
}

/** Saves a conversation as JSON: its turns as the service has them. */
export function saveJson({ id, title }, turns) {
  const plain = ({ question, answer, status, created_at, response_id, collection, citations, grounding }) => ({ question, answer, status, created_at, response_id, collection, citations, grounding });
  save(fileName(title, "json"), "application/json", `${JSON.stringify({ id, title, turns: turns.map(plain) }, null, 2)}\n`);
}

export function markdown(title, turns) {
  return `${[`# ${line(title)}`, ...turns.map(section)].join("\n\n")}\n`;
}

function section({ question, answer, status, created_at: at, collection, citations, grounding }) {
  const facts = [at && new Date(1000 * at).toISOString().slice(0, 16).replace("T", " "), collection && `collection ${collection}`, status === "incomplete" && "not finished"].filter(Boolean).join(", ");
  const marked = marks(answer, grounding).map(({ text, passages }) => text + (passages ?? []).map((number) => ` [${number}]`).join("")).join("");
  const parts = [`## ${line(question)}`, facts && `*${facts}*`, question.includes("\n") && quoted(question, "> "), marked.trim(), citations?.length && sources(citations)];
  return parts.filter(Boolean).join("\n\n");
}

function sources(citations) {
  const source = ({ number, title, source, page, document_id: id, text }) => {
    const where = [page && `page ${page}`, source && `\`${source.replaceAll("`", "'")}\``].filter(Boolean).map((part) => `, ${part}`).join("");
    return `${number}. **${line(title || source || id || "passage")}**${where}\n\n${quoted(text.trim(), "   > ")}`;
  };
  return `### Sources\n\n${byNumber(citations).map(source).join("\n\n")}`;
}

/** Passages by their numbers: prompts have them in another order. */
export function byNumber(citations) {
  return [...citations].sort((one, other) => one.number - other.number);
}

/** On one line, with nothing that Markdown would take for its own. */
function line(text) {
  return text.replace(/\s+/g, " ").trim().replace(/[\\`*_[\]<>#]/g, "\\$&");
}

function quoted(text, mark) {
  return text.split("\n").map((one) => (mark + one).trimEnd()).join("\n");
}

/** An answer in pieces: sentences with the passages that they stand on (none: an empty list), and what is between them. */
export function marks(answer, grounding) {
  const pieces = [];
  let end = 0;
  for (const { text, passages } of grounding?.sentences ?? []) {
    const begin = answer.indexOf(text, end);
    if (begin < 0) continue;
    if (begin > end) pieces.push({ text: answer.slice(end, begin) });
    end = begin + text.length;
    pieces.push({ text, passages });
  }
  if (end < answer.length) pieces.push({ text: answer.slice(end) });
  return pieces;
}
