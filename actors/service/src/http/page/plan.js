// A prompt's plan as a picture: what was loaded, blended and computed, and how long the first token took.

import { bytes, count, h, ms, s, share, table } from "./dom.js";

const WIDTH = 1000;
const SOURCES = { exact: "loaded", blend: "blended", compute: "computed" };
const KINDS = { system_prompt: "system prompt", passage: "passage", text: "text", module: "module", question: "question" };
const WHY = {
  in_place: "on the device already",
  stored_exactly: "stored, computed after these very tokens",
  stored_closely: "stored, computed after others",
  not_stored: "not stored",
  other_positions: "stored, computed at other positions, and this model's KV cannot be moved",
  ends_the_prompt: "the end of a prompt is computed every time",
  slow_to_load: "stored, but loading takes longer than computing",
  late_miss: "stored, but could not be loaded",
};

/** A prompt's tokens, and how many of them were not computed. The four numbers of a report have no token in common. */
export function account({ exact, blended, recomputed, computed }) {
  return { all: exact + blended + recomputed + computed, kept: exact + blended };
}

/** The plan of a report. `cited` names its passages, where they are known. */
export function plan(report, cited = []) {
  const { tokens, ttft, predicted } = report;
  const { all, kept } = account(tokens);
  const parts = named(report.segments, cited);
  const again = tokens.recomputed ? `${count(tokens.recomputed)} computed again in blended passages, ` : "";
  const expected = predicted ? `, predicted ${ms(predicted.total_ms)} from its turn on` : "";
  return h("div", { class: "plan" },
    h("p", {},
      h("strong", {}, `${share(kept, all)} not computed`),
      ` · ${count(tokens.exact)} tokens exact, ${count(tokens.blended)} blended, ${again}${count(tokens.computed)} computed`,
      h("br"), `First token after ${ms(ttft.total_ms)}${expected}.`),
    prompt(parts, all),
    legend(),
    times(report),
    h("details", {}, h("summary", {}, "Segments, loads and why"), segments(parts), loads(report), more(report)));
}

/** The segments with a `name` each. Passages have their numbers, and their titles if `cited` is as long as there are passages. */
function named(segments, cited) {
  const isKnown = segments.filter(({ kind }) => kind === "passage").length === cited.length;
  let number = 0;
  return segments.map((part) => {
    if (part.kind !== "passage") return { ...part, name: KINDS[part.kind] ?? part.kind };
    number += 1;
    const { title, source, document_id: id } = (isKnown && cited[number - 1]) || {};
    const of = title || source || id;
    return { ...part, name: `passage ${number}${of ? `: ${of}` : ""}` };
  });
}

/** The prompt from left to right: each segment is as wide as it has tokens. */
function prompt(parts, all) {
  let x = 0;
  const bars = parts.filter((part) => part.tokens > 0).map((part) => {
    const width = (WIDTH * part.tokens) / all;
    const from = part.tier ? ` from ${part.tier}` : "";
    const bar = s("rect", { x, y: 2, width: Math.max(width - 1.5, 1), height: 26, rx: 2, class: part.source },
      s("title", {}, `${part.name}: ${part.tokens} tokens, ${SOURCES[part.source]}${from}`));
    x += width;
    return bar;
  });
  const what = Object.entries(SOURCES).map(([source, text]) => {
    const tokens = parts.filter((part) => part.source === source).reduce((sum, part) => sum + part.tokens, 0);
    return `${tokens} tokens ${text}`;
  });
  return s("svg", { viewBox: `0 0 ${WIDTH} 30`, height: 30, preserveAspectRatio: "none", role: "img", "aria-label": `The prompt: ${what.join(", ")}` }, bars);
}

function legend() {
  const swatch = (kind) => s("svg", { viewBox: "0 0 1 1", "aria-hidden": "true" }, s("rect", { width: 1, height: 1, class: kind }));
  const names = { ...SOURCES, wait: "waiting", other: "search and planning" };
  return h("p", { class: "legend" }, Object.entries(names).map(([kind, name]) => h("span", {}, swatch(kind), name)));
}

/** Lanes over one axis of time: as measured, and as predicted, where loads run beside the layers. */
function times({ ttft, predicted }) {
  const found = ttft.retrieve_ms + ttft.rerank_ms;
  const before = found + ttft.assemble_ms + ttft.look_up_ms + ttft.plan_ms;
  const measured = [["search", ttft.retrieve_ms, "other"], ["reranking", ttft.rerank_ms, "other"], ["prompt, look-up, plan", before - found, "other"],
    ["queue", ttft.queue_ms, "wait"], ["layers", ttft.compute_ms, "compute"], ["waiting for loads", ttft.load_wait_ms, "wait"]];
  const lanes = [["measured", 0, measured]];
  const begin = before + ttft.queue_ms;
  if (predicted) {
    if (predicted.load_ms > 0) lanes.push(["predicted loads", begin, [["loads", predicted.load_ms, "exact"]]]);
    lanes.push(["predicted layers", begin, [["layers", predicted.compute_ms, "compute"], ["placing", predicted.place_ms, "blend"], ["waiting for loads", predicted.wait_ms, "wait"]]]);
  }
  const end = Math.max(...lanes.map(([, from, parts]) => from + parts.reduce((sum, [, time]) => sum + time, 0)), ttft.total_ms);
  const scale = WIDTH / end;
  const drawn = lanes.map(([name, from, parts]) => {
    let x = from * scale;
    const bars = parts.filter(([, time]) => time > 0).map(([part, time, kind]) => {
      const bar = s("rect", { x, y: 0, width: Math.max(time * scale, 1), height: 16, class: kind }, s("title", {}, `${name}: ${part}, ${ms(time)}`));
      x += time * scale;
      return bar;
    });
    return [h("span", {}, name), s("svg", { viewBox: `0 0 ${WIDTH} 16`, height: 16, preserveAspectRatio: "none" }, bars)];
  });
  const label = lanes.map(([name, , parts]) => `${name}: ${parts.filter(([, time]) => time > 0).map(([part, time]) => `${part} ${ms(time)}`).join(", ")}`);
  return h("div", { class: "lanes", role: "img", "aria-label": `Time to the first token. ${label.join(". ")}` },
    drawn, h("span", { class: "axis" }, h("span", {}, "0"), h("span", {}, ms(end))));
}

function segments(parts) {
  const rows = parts.map((part) => [part.name, count(part.tokens), SOURCES[part.source], part.tier ?? "", part.tiers.join(", "),
    part.bytes ? bytes(part.bytes) : "", part.predicted ? ms(part.source === "compute" ? part.predicted.compute_ms : part.predicted.load_ms + part.predicted.compute_ms) : "", WHY[part.why] ?? part.why]);
  return table("Segments, in the prompt's order", ["~segment", "#tokens", "how", "taken from", "stored in", "#size", "#predicted", "~why"], rows);
}

function loads(report) {
  if (report.loads.length === 0) return null;
  const rows = report.loads.map((load) => [load.tier, bytes(load.bytes), ms(load.ms)]);
  return table("Loads", ["tier", "#size", "#took"], rows);
}

function more(report) {
  const notes = [`blending: ${report.blending.replaceAll("_", " ")}`];
  if (report.selection_layer !== null) notes.push(`${Math.round(100 * report.ratio)} % computed again from layer ${report.selection_layer} on`);
  if (report.drafts) notes.push(`drafts: ${report.drafts.accepted} of ${report.drafts.drafted} tokens were right`);
  if (report.rerank) notes.push(`${report.rerank.candidates} passages put in order by the ${report.rerank.by === "model" ? "language model" : "cross-encoder"}`);
  if (report.speculation) notes.push(`${ms(report.speculation.hidden_ms)} of the search ran beside the prefill (${report.speculation.outcome})`);
  for (const tier of report.in_tiers ?? []) notes.push(`all of it in ${tier.tier}: ${ms(tier.total_ms)}`);
  return h("p", { class: "quiet" }, notes.join(" · "));
}
