// API keys: who may use the service, and as what; and quotas: how much of it.

import { ApiError, at, get, post, remove } from "./api.js";
import { bytes, confirmed, count, failure, field, h, parted, table, toast, when } from "./dom.js";
import { action, change, live } from "./live.js";
import { guarded } from "./owner.js";

/** Of the form: what came of it. It outlives the view, as a key that was made while that was left is shown nowhere else. */
const made = h("div", { "aria-live": "polite" });
let isSeen = true;

function show(what) {
  if (isSeen) made.replaceChildren(what);
  else made.append(what);
  isSeen = made.isConnected;
}

export async function keys(view) {
  const { content, signal, again } = view;
  await guarded(content, "Keys", async () => {
    const list = h("div");
    await live(view, list, async () => {
      const { data } = await get("/v1/keys", signal);
      const row = ({ name, role, tenant, collections, added_unix_ms: added }) => [name, role, tenant || "default", parted(collections.join(", ")), when(added), revocation(view, name)];
      return data.length ? table("Keys", ["~name", "role", "~tenant", "~also reads", "made", ""], data.map(row), true) : h("p", { class: "quiet" }, "There is none yet.");
    });
    const quotas = h("div");
    await live(view, quotas, async () => {
      const { data } = await get("/v1/quotas", signal);
      const rows = data.flatMap(({ tenant, quotas: all }) => all.map(({ name, limit, used }) => [tenant || "default", name, amount(name, used), amount(name, limit)]));
      return rows.length ? table("Quotas", ["~tenant", "quota", "#used", "#limit"], rows, true) : h("p", { class: "quiet" }, "No tenant has one.");
    });
    content.replaceChildren(h("h1", {}, "Keys"),
      h("p", { class: "quiet" }, "A service asks for them where it is started by ", h("code", {}, "ragstone serve --keys required"), "."),
      list, h("h2", {}, "Make one"), making(), h("h2", {}, "Quotas"), quotas, limiting());
  }, again);
}

const QUOTAS = ["requests_per_minute", "tokens_per_minute", "documents", "host_bytes", "disk_bytes", "host_share_bytes", "disk_share_bytes"];

function amount(name, number) {
  return name.endsWith("_bytes") ? bytes(number) : count(number);
}

/** A form that sets a tenant's quota, or takes it away where no number is given. */
function limiting() {
  const tenant = h("input", { maxlength: "64", autocomplete: "off", placeholder: "default" });
  const name = h("select", {}, QUOTAS.map((one) => h("option", { value: one }, one)));
  const limit = h("input", { type: "number", min: "0", step: "1", max: "9007199254740991", placeholder: "none" });
  const told = h("div", { "aria-live": "polite" });
  let isBusy = false;
  const set = async (event) => {
    event.preventDefault();
    if (isBusy) return;
    isBusy = true;
    try {
      const quota = { [name.value]: limit.value === "" ? null : Number(limit.value) };
      await change(() => post("/v1/quotas", { tenant: tenant.value, quota }));
      told.replaceChildren();
      toast(`The quota ${name.value} is set.`);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      told.replaceChildren(failure(error));
    } finally {
      isBusy = false;
    }
  };
  return h("form", { onsubmit: set },
    h("div", { class: "row" }, field("Tenant of the quota", tenant), field("Quota", name), field("Limit, or bytes of a share", limit), h("button", {}, "Set it")), told);
}

function revocation(view, name) {
  return action({ class: "small danger", "aria-label": `Revoke ${name}` }, "Revoke …", async () => {
    if (!(await confirmed(`Revoke ${name}? Whoever uses it is refused from then on.`, "Revoke", view.signal))) return;
    await change(() => remove(at`/v1/keys/${name}`));
    toast(`${name} is revoked.`);
  });
}

/** A form, and the key that it made: shown this once. */
function making() {
  const name = h("input", { required: true, maxlength: "128", autocomplete: "off" });
  const tenant = h("input", { maxlength: "64", autocomplete: "off", placeholder: "default" });
  const role = h("select", {}, ["read", "write", "admin"].map((one) => h("option", { value: one }, one)));
  const collections = h("input", { autocomplete: "off", placeholder: "tenant/name, …" });
  if (isSeen) made.replaceChildren();
  isSeen = true;
  let isBusy = false;
  const make = async (event) => {
    event.preventDefault();
    if (isBusy) return;
    isBusy = true;
    const granted = collections.value.split(",").map((one) => one.trim()).filter(Boolean);
    const wanted = { name: name.value, role: role.value, tenant: tenant.value, collections: granted };
    try {
      const { key } = await change(() => post("/v1/keys", wanted));
      show(h("div", { class: "card" }, h("p", {}, `The key of ${wanted.name}. It is shown this once; only its hash is kept.`), h("p", {}, h("code", {}, key))));
      name.value = "";
      if (!isSeen) toast(`The key of ${wanted.name} is made. The view Keys shows it once.`);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      show(failure(error));
      if (!isSeen) toast(`The key of ${wanted.name} was not made: ${error.message}`);
    } finally {
      isBusy = false;
    }
  };
  return h("form", { onsubmit: make },
    h("div", { class: "row" }, field("Name", name), field("Role", role), field("Tenant", tenant), field("Collections of other tenants, to read", collections), h("button", { class: "main" }, "Make a key")), made);
}
