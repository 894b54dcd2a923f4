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
  const told = h("div", { role: "alert" });
  const take = (event) => {
    event.preventDefault();
    const value = input.value.trim();
    // No header carries another character: nothing could be asked any more.
    if (!/^[\x21-\x7e]+$/.test(value)) return told.replaceChildren("This is no token: copy it again, without spaces or signs that came along with it.");
    token.set(value);
    again();
  };
  return h("form", { class: "hint", onsubmit: take },
    h("p", {}, why, " On the machine that serves, ", h("code", {}, "ragstone page"),
      " prints a link to this page that carries the owner's token; or paste the token of ", h("code", {}, "service.json"), "."),
    h("div", { class: "row" }, field("Token", input), h("button", { class: "main" }, "Use it")), told);
}
