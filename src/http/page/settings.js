// Every setting, and where it comes from.

import { get } from "/page/api.js";
import { h, table } from "/page/dom.js";
import { guarded } from "/page/owner.js";

export async function settings({ content, signal, again }) {
  await guarded(content, "Settings", async () => {
    const { data } = await get("/v1/settings", signal);
    const text = (value) => h("code", {}, value === null ? "none" : typeof value === "string" ? value : JSON.stringify(value));
    const rows = (list) => list.map(({ key, value, default: usual, source }) => [h("code", {}, key), text(value), source ? text(usual) : "", source ?? ""]);
    const given = data.filter(({ source }) => source);
    content.replaceChildren(h("h1", {}, "Settings"),
      h("p", { class: "quiet" }, "They are read once, at the start: flags, then RAGSTONE_… variables, then the file of --config, then defaults."),
      given.length ? table("Given", ["setting", "value", "default", "from"], rows(given)) : h("p", {}, "All have their defaults."),
      table("Defaults", ["setting", "value", "", ""], rows(data.filter(({ source }) => !source))));
  }, again);
}
