// Every setting, and where it comes from.

import { get } from "/page/api.js";
import { bytes, h, table } from "/page/dom.js";
import { guarded } from "/page/owner.js";

export async function settings({ content, signal, again }) {
  await guarded(content, "Settings", async () => {
    const { data } = await get("/v1/settings", signal);
    const text = (key, value) => {
      if (value === null) return "none";
      if (key.endsWith("_bytes") && value > 0) return bytes(value);
      return h("code", {}, typeof value === "string" ? value : JSON.stringify(value));
    };
    const name = ({ key, variable }) => h("code", { title: `--set ${key}=…, or ${variable}` }, key);
    const given = data.filter(({ source }) => source);
    content.replaceChildren(h("h1", {}, "Settings"),
      h("p", { class: "quiet" }, "They are read once, at the start: flags, then RAGSTONE_… variables, then the file of --config, then defaults."),
      given.length ? table("Given", ["setting", "value", "default", "from", "what it is"], given.map((row) => [name(row), text(row.key, row.value), text(row.key, row.default), row.source, row.about])) : h("p", {}, "All have their defaults."),
      table("Defaults", ["setting", "value", "what it is"], data.filter(({ source }) => !source).map((row) => [name(row), text(row.key, row.value), row.about])));
  }, again);
}
