// Every setting, and where it comes from.

import { get } from "./api.js";
import { bytes, h, parted, table } from "./dom.js";
import { guarded } from "./owner.js";

export async function settings({ content, signal, again }) {
  await guarded(content, "Settings", async () => {
    const { data } = await get("/v1/settings", signal);
    const given = data.filter(({ source }) => source);
    content.replaceChildren(h("h1", {}, "Settings"),
      h("p", { class: "quiet" }, "They are read once, at the start: flags, then RAGSTONE_… variables, then the file of ", h("code", { class: "key" }, "--config"), ", then defaults."),
      given.length ? table("Given", ["setting", "~value", "~default", "~from", "what it is"], given.map((row) => [name(row), text(row.key, row.value), usual(row), parted(row.source), row.about])) : h("p", {}, "All have their defaults."),
      table("Defaults", ["setting", "~value", "what it is"], data.filter(({ source }) => !source).map((row) => [name(row), inForce(row), row.about])));
  }, again);
}

function name({ key, variable }) {
  return h("code", { class: "key", title: `--set ${key}=…, or ${variable}` }, key);
}

function text(key, value) {
  if (value === null) return "none";
  if (key.endsWith("_bytes") && value > 0) return bytes(value);
  return h("code", {}, parted(typeof value === "string" ? value : JSON.stringify(value)));
}

/** A default: the value, or in words what takes its place. */
function usual({ key, default: value, default_text: words }) {
  return words ? parted(words) : text(key, value);
}

/** What holds where nothing was given. */
function inForce(row) {
  const isUnset = row.value === null && row.default_text && row.default_text !== "none";
  return isUnset ? ["not set: ", usual(row)] : usual(row);
}
