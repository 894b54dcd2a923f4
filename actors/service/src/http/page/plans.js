// The last prompts' plans.

import { get, happenings } from "./api.js";
import { count, h, ms, share, when } from "./dom.js";
import { guarded } from "./owner.js";
import { account, plan } from "./plan.js";

const MOST = 64;
const NOTHING = "Nothing was asked since the service started.";

/** Puts each answer's plan on top as it comes. Where that cannot be heard, "Look again" is there. */
async function follow(list, item, signal) {
  try {
    for await (const event of happenings(signal)) {
      if (event.type !== "answer") continue;
      list.querySelector(":scope > p")?.remove();
      list.prepend(item(event));
      while (list.children.length > MOST) list.lastElementChild.remove();
    }
  } catch {
    // The service stops, or too many watch.
  }
}

export async function plans({ content, signal, again }) {
  await guarded(content, "Plans", async () => {
    const { plans: known } = await get("/v1/cache/plans", signal);
    const item = ({ number, unix_ms: at, tenant, question, report }) => {
      const { all, kept } = account(report.tokens);
      const line = `${number ? `${number}: ` : ""}${count(all)} tokens, ${share(kept, all)} not computed, first token after ${ms(report.ttft.total_ms)}`;
      return h("details", { class: "card" },
        h("summary", {}, question ? [h("bdi", { class: "asked" }, question), h("br")] : "", line, h("span", { class: "quiet" }, ` · ${when(at)}${tenant ? ` · ${tenant}` : ""}`)), plan(report));
    };
    const list = h("div", {}, known.length ? known.map(item) : h("p", { class: "quiet" }, NOTHING));
    content.replaceChildren(h("h1", {}, "Plans of the last prompts"),
      h("div", { class: "row" }, h("button", { onclick: again }, "Look again")), list);
    follow(list, item, signal);
  }, again);
}
