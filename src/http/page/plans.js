// The last prompts' plans.

import { get } from "/page/api.js";
import { count, h, ms, share, when } from "/page/dom.js";
import { guarded } from "/page/owner.js";
import { plan } from "/page/plan.js";

export async function plans({ content, signal, again }) {
  await guarded(content, "Plans", async () => {
    const { plans: known } = await get("/v1/cache/plans", signal);
    const item = ({ number, unix_ms: at, tenant, report }) => {
      const { exact, blended, recomputed, computed } = report.tokens;
      const all = exact + blended + computed;
      const line = `${number}: ${count(all)} tokens, ${share(exact + blended - recomputed, all)} not computed, first token after ${ms(report.ttft.total_ms)}`;
      return h("details", { class: "card" }, h("summary", {}, line, h("span", { class: "quiet" }, ` · ${when(at)}${tenant ? ` · ${tenant}` : ""}`)), plan(report));
    };
    content.replaceChildren(h("h1", {}, "Plans of the last prompts"),
      h("div", { class: "row" }, h("button", { onclick: again }, "Look again")),
      known.length ? h("div", {}, known.map(item)) : h("p", { class: "quiet" }, "Nothing was asked since the service started."));
  }, again);
}
