// API keys: who may use the service, and as what.

import { at, get, post, remove } from "/page/api.js";
import { confirmed, failure, field, h, table, toast, when } from "/page/dom.js";
import { guarded } from "/page/owner.js";

export async function keys({ content, signal, again }) {
  await guarded(content, "Keys", async () => {
    const list = h("div");
    const refresh = async () => {
      const { data } = await get("/v1/keys", signal);
      const row = ({ name, role, tenant, collections, added_unix_ms: added }) => [
        name, role, tenant || "default", collections.join(", "), when(added),
        h("button", { class: "small danger", onclick: () => revoke(name, refresh), "aria-label": `Revoke ${name}` }, "Revoke …")];
      list.replaceChildren(data.length ? table("Keys", ["name", "role", "tenant", "also reads", "made", ""], data.map(row)) : h("p", { class: "quiet" }, "There is none yet."));
    };
    await refresh();
    content.replaceChildren(h("h1", {}, "Keys"),
      h("p", { class: "quiet" }, "A service asks for them where it is started by ", h("code", {}, "ragstone serve --keys required"), "."),
      list, h("h2", {}, "Make one"), making(refresh));
  }, again);
}

async function revoke(name, after) {
  if (!(await confirmed(`Revoke ${name}? Whoever uses it is refused from then on.`, "Revoke"))) return;
  try {
    await remove(at`/v1/keys/${name}`);
    toast(`${name} is revoked.`);
    await after();
  } catch (error) {
    toast(error.message);
  }
}

/** A form, and the key that it made: shown this once. */
function making(after) {
  const name = h("input", { required: true, maxlength: "128", autocomplete: "off" });
  const tenant = h("input", { maxlength: "64", autocomplete: "off", placeholder: "default" });
  const role = h("select", {}, ["read", "write", "admin"].map((one) => h("option", { value: one }, one)));
  const collections = h("input", { autocomplete: "off", placeholder: "tenant/name, …" });
  const made = h("div", { "aria-live": "polite" });
  const make = async (event) => {
    event.preventDefault();
    const granted = collections.value.split(",").map((one) => one.trim()).filter(Boolean);
    try {
      const { key } = await post("/v1/keys", { name: name.value, role: role.value, tenant: tenant.value, collections: granted });
      made.replaceChildren(h("div", { class: "card" }, h("p", {}, `The key of ${name.value}. It is shown this once; only its hash is kept.`), h("p", {}, h("code", {}, key))));
      name.value = "";
      await after();
    } catch (error) {
      made.replaceChildren(failure(error));
    }
  };
  return h("form", { onsubmit: make },
    h("div", { class: "row" }, field("Name", name), field("Role", role), field("Tenant", tenant), field("Collections of other tenants, to read", collections), h("button", { class: "main" }, "Make a key")), made);
}
