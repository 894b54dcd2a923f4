// The tiers, over time, and what is in them.

import { get, post, token } from "./api.js";
import { bytes, confirmed, count, counted, facts, field, h, s, share, toast, when } from "./dom.js";
import { kinds } from "./jobs.js";
import { action, change, every, live } from "./live.js";
import { wanted } from "./owner.js";

const EVERY_MS = 2000;
const KEPT = 300;
const ENTRIES = 500;

/** Looks at the tiers since the page was opened: `{ at, tiers: { name: { bytes, hits, misses } } }`. */
const seen = [];

export async function store(view) {
  const { content, signal, again } = view;
  // A key below admin is told of the model alone.
  if (!(await get("/v1/cache/status", signal)).store) return content.replaceChildren(h("h1", {}, "Store"), wanted(again));
  const tiers = h("div", { "aria-live": "off" });
  const refresh = await live(view, tiers, async () => look(await get("/v1/cache/status", signal)));
  every(EVERY_MS, signal, refresh);
  const entries = token.get() ? await list(view) : wanted(again);
  content.replaceChildren(h("h1", {}, "Store"), tiers, h("h2", {}, "Entries"), entries);
}

function look(status) {
  const known = { device: status.device.cache, host: status.store.host, disk: status.store.disk, bucket: status.store.object };
  const tiers = Object.fromEntries(Object.entries(known).filter(([, tier]) => tier));
  seen.push({ at: Date.now(), tiers });
  if (seen.length > KEPT) seen.shift();
  const { model, store: stored, device } = status;
  const jobs = kinds(status).map(([what, number]) => counted(number, what));
  const service = [
    ["Model", `${model.id}, ${model.architecture}, context ${count(model.context)}, ${bytes(model.kv_bytes_per_token)} of KV a token`],
    ["Blending", status.blend.blending.replaceAll("_", " ") + (status.blend.selection ? `: ${status.blend.selection.rule}, ${Math.round(1000 * status.blend.ratio) / 10} % computed again${status.blend.primer ? `, behind a primer of ${status.blend.primer}` : ""}` : "")],
    ["Blocks", `${count(device.free_blocks)} of ${count(device.blocks)} free, ${count(device.cached_blocks)} cached, ${count(device.preemptions)} preemptions`],
    ["On its way", `${counted(stored.to_disk.entries, "entry")} to disk, ${count(stored.to_object.entries)} to the bucket, ${counted(status.background, "prompt")} in the background${jobs.length ? `; ${jobs.join("; ")}` : ""}`],
  ];
  const damage = (status.damage ?? []).map(({ what, found, advice }) => h("p", { class: "hint", role: "alert" }, `Damaged, ${what}: ${found}; ${advice}.`));
  return [...damage, h("div", { class: "cards" }, Object.entries(tiers).map(card)), facts(service)];
}

function card([name, tier]) {
  const asked = tier.hits + tier.misses;
  const bound = tier.capacity_bytes ? ` of ${bytes(tier.capacity_bytes)}` : "";
  const numbers = [["evicted", tier.evicted], ["declined", tier.declined], ["damaged", tier.corrupt], ["failed", tier.failed], ["refused", tier.refused]].map(([what, number]) => [number, `${count(number)} ${what}`]);
  return h("section", { class: "card", "aria-label": name },
    h("strong", {}, name),
    h("div", {}, `${bytes(tier.bytes)}${bound}, ${counted(tier.entries, "entry")}`),
    tier.capacity_bytes ? h("progress", { max: tier.capacity_bytes, value: tier.bytes, "aria-label": `${name} is filled to ${share(tier.bytes, tier.capacity_bytes)}` }) : "",
    h("div", {}, asked ? `${share(tier.hits, asked)} of ${counted(asked, "look-up")} hit` : "not asked yet"),
    spark(seen.map((look) => look.tiers[name]?.bytes ?? 0), "bytes"),
    h("div", { class: "quiet" }, [[tier.hits, counted(tier.hits, "hit")], ...numbers].filter(([number]) => number > 0).map(([, text]) => text).join(" · ")));
}

/** A line over the time since the page was opened. Of what never changed there is none: it would be a gap between lines of text. */
function spark(values, what) {
  if (values.every((value) => value === values[0])) return "";
  const most = Math.max(...values, 1);
  const step = 200 / Math.max(values.length - 1, 1);
  const points = values.map((value, at) => `${(at * step).toFixed(1)},${(30 - (28 * value) / most).toFixed(1)}`).join(" ");
  return s("svg", { viewBox: "0 0 200 32", preserveAspectRatio: "none", height: 32, role: "img", "aria-label": `${what}, since this page was opened` },
    s("polyline", { points, class: "spark", "vector-effect": "non-scaling-stroke" }));
}

/** A choice among `names` that keeps what was chosen as long as it is among them. */
function choose(select, first, names) {
  const { value } = select;
  select.replaceChildren(h("option", { value: "" }, first), ...names.map((name) => h("option", { value: name }, name)));
  select.value = names.includes(value) ? value : "";
}

async function list(view) {
  const { signal, again } = view;
  const collection = h("select");
  const tier = h("select");
  choose(tier, "any", ["device", "host", "disk", "object"]);
  const shown = h("div");
  const filter = () => Object.fromEntries(Object.entries({ collection: collection.value, tier: tier.value }).filter(([, value]) => value));
  const draw = async () => {
    const { data: known } = await get("/v1/collections", signal);
    choose(collection, "all", known.map(({ name }) => name));
    try {
      return tree(await get(`/v1/cache/entries?${new URLSearchParams({ ...filter(), limit: ENTRIES })}`, signal));
    } catch (error) {
      if (error.status !== 403) throw error;
      return wanted(again);
    }
  };
  const act = (verb) => {
    const title = `${verb[0].toUpperCase()}${verb.slice(1)}`;
    return action({ class: verb === "evict" && "danger" }, `${title} these …`, async () => {
      const named = Object.keys(filter()).length ? filter() : { all: true };
      const plan = await post(`/v1/cache/${verb}`, { ...named, dry_run: true });
      const what = `${counted(plan.entries ?? 0, "entry")} (${bytes(plan.bytes ?? 0)})`;
      if (!(await confirmed(`${title} ${what}?`, verb, signal))) return;
      await change(() => post(`/v1/cache/${verb}`, named));
      toast(`${verb}: ${what}`);
    });
  };
  const refresh = await live(view, shown, draw);
  collection.addEventListener("change", refresh);
  tier.addEventListener("change", refresh);
  return h("div", {}, h("div", { class: "row" }, field("Collection", collection), field("Tier", tier), ["pin", "unpin", "evict"].map(act)), shown);
}

/** The knowledge tree: each entry below the one that it was computed after. */
function tree({ data, entries, bytes: size, has_more: more, object_unavailable: away }) {
  const line = `${counted(entries, "entry")}, ${bytes(size)}${more ? `; the ${count(data.length)} used last are shown` : ""}${away ? "; the bucket does not answer" : ""}`;
  const below = new Map();
  const known = new Set(data.map(({ key }) => key));
  for (const entry of data) {
    const parent = known.has(entry.parent) ? entry.parent : null;
    below.set(parent, [...(below.get(parent) ?? []), entry]);
  }
  // A list, so that a chain of thousands overflows no stack.
  const root = h("ul", { class: "tree" });
  const waiting = [[root, null]];
  while (waiting.length) {
    const [place, key] = waiting.pop();
    for (const entry of below.get(key) ?? []) {
      const item = h("li", {}, row(entry));
      place.append(item);
      if (below.has(entry.key)) {
        const children = h("ul");
        item.append(children);
        waiting.push([children, entry.key]);
      }
    }
  }
  return h("div", {}, h("p", { class: "quiet" }, line), root);
}

/** What is no passage of a collection. */
const KINDS = {
  system_prompt: "system prompt", primer: "primer", prompt_start: "start of a conversation or another prompt", text: "text of a conversation, a prompt or an answer",
  other_passage: "passage that came with a request or an import",
};

function row(entry) {
  const { of } = entry;
  const name = of.kind === "passage"
    ? h("a", { href: `#/collections/${encodeURIComponent(of.collection)}/${encodeURIComponent(of.document)}` }, `${of.title || of.document}${of.ordinal ? ` (${of.ordinal + 1})` : ""}`)
    : of.kind === "module" ? `${of.schema} ${of.module === "/" ? "(schema)" : of.module}` : KINDS[of.kind] ?? of.kind.replaceAll("_", " ");
  return h("div", { class: "entry" }, h("span", { class: "name", title: `${entry.key}, used last ${when(entry.last_use_unix_ms)}` }, name),
    h("span", { class: "quiet" }, `${counted(entry.tokens, "token")}, ${bytes(entry.bytes)}, ${counted(entry.uses, "use")}`),
    entry.tiers.map((tier) => h("span", { class: "tag" }, tier === "object" ? "bucket" : tier)),
    entry.pinned && h("span", { class: "tag" }, "pinned"), entry.lossy && h("span", { class: "tag" }, "8 bits"), entry.tenant && h("span", { class: "tag" }, entry.tenant));
}
