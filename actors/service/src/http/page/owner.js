// What only the data folder's owner may see or do.

import { token } from "./api.js";
import { field, h } from "./dom.js";

/** Shows what `draw` draws, or asks for the owner's token where the service wants it. */
export async function guarded(content, title, draw, again) {
  if (token.get()) {
    try {
      return await draw();
    } catch (error) {
      if (error.status !== 403 && error.status !== 401) throw error;
    }
  }
  content.replaceChildren(h("h1", {}, title), wanted(again));
}

/** Asks for a key or the owner's token, where the service lets nobody in without. */
export function locked(again) {
  return h("div", {}, h("h1", {}, "This service wants a key"), wanted(again, "Paste an API key, or become the owner:"));
}

/** How to become the owner. */
export function wanted(again, why = "This is for the data folder's owner.") {
  const input = h("input", { type: "password", autocomplete: "off", spellcheck: "false" });
  const take = (event) => {
    event.preventDefault();
    token.set(input.value.trim());
    again();
  };
  return h("form", { class: "hint", onsubmit: take },
    h("p", {}, why, " On the machine that serves, ", h("code", {}, "ragstone page"),
      " prints a link to this page that carries the owner's token; or paste the token of ", h("code", {}, "service.json"), "."),
    h("div", { class: "row" }, field("Token", input), h("button", { class: "main" }, "Use it")));
}
