// What only the data folder's owner may see or do.

import { token } from "/page/api.js";
import { field, h } from "/page/dom.js";

/** Shows what `draw` draws, or asks for the owner's token where the service wants it. */
export async function guarded(content, title, draw, again) {
  if (token.get()) {
    try {
      return await draw();
    } catch (error) {
      if (error.status !== 403) throw error;
    }
  }
  content.replaceChildren(h("h1", {}, title), wanted(again));
}

/** How to become the owner. */
export function wanted(again) {
  const input = h("input", { type: "password", autocomplete: "off", spellcheck: "false" });
  const take = (event) => {
    event.preventDefault();
    token.set(input.value.trim());
    again();
  };
  return h("form", { class: "hint", onsubmit: take },
    h("p", {}, "This is for the data folder's owner. On the machine that serves, ", h("code", {}, "ragstone page"),
      " prints a link to this page that carries the owner's token; or paste the token of ", h("code", {}, "service.json"), "."),
    h("div", { class: "row" }, field("Token", input), h("button", { class: "main" }, "Use it")));
}
