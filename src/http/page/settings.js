// Every setting, and where it comes from.

import { get } from "/page/api.js";
import { bytes, h, table } from "/page/dom.js";
import { guarded } from "/page/owner.js";

export async function settings({ content, signal, again }) {
  await guarded(content, "Settings", async () => {
    const { data } = await get("/v1/settings", signal);
    const given = data.filter(({ source }) => source);
    content.replaceChildren(h("h1", {}, "Settings"),
      h("p", { class: "quiet" }, "They are read once, at the start: flags, then RAGSTONE_… variables, then the file of --config, then defaults."),
      given.length ? table("Given", ["setting", "~value", "~default", "~from", "what it is"], given.map((row) => [name(row), text(row.key, row.value), usual(row), row.source, row.about])) : h("p", {}, "All have their defaults."),
      table("Defaults", ["setting", "~value", "what it is"], data.filter(({ source }) => !source).map((row) => [name(row), usual(row), row.about])));
  }, again);
}

function name({ key, variable }) {
  return h("code", { class: "key", title: `--set ${key}=…, or ${variable}` }, key);
}

function text(key, value) {
  if (value === null) return "none";
  if (key.endsWith("_bytes") && value > 0) return bytes(value);
  return h("code", {}, typeof value === "string" ? value : JSON.stringify(value));
}

/** What is in force where nothing is given: the value, or in words what takes its place. */
function usual({ key, default: value, default_text: words }) {
  if (!words || words === "none") return words ?? text(key, value);
  return value === null ? `not set: ${words}` : words;
}
