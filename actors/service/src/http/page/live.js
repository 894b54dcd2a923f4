// Views show what is so now, and what changes it belongs to none of them.

import { ApiError } from "./api.js";
import { failure, h, swap, toast } from "./dom.js";

const changes = new EventTarget();

/** Changes something. It ends although the view in which it began was left, and whatever is shown then is read again. */
export async function change(work) {
  try {
    return await work();
  } finally {
    changes.dispatchEvent(new Event("change"));
  }
}

/**
 * Fills `place` with what `draw` makes of the service, now and after each change, until the view is left. What fails now fails the view;
 * what fails later is shown in the place. Answers what draws again.
 */
export async function live({ signal, again }, place, draw) {
  let last = 0;
  let complaint = null;
  const attempt = async (isFirst) => {
    last += 1;
    const mine = last;
    const isWanted = () => mine === last && !signal.aborted;
    try {
      const drawn = await draw();
      if (!isWanted()) return;
      complaint = null;
      if (drawn) swap(place, drawn);
    } catch (error) {
      if (isFirst) throw error;
      if (!isWanted()) return;
      if (!(error instanceof ApiError)) throw error;
      // The token or key is gone: the view says what it wants.
      if (error.status === 401 || error.status === 403) return again();
      // Said once, however often it is tried.
      if (error.message !== complaint) swap(place, failure(error, refresh));
      complaint = error.message;
    }
  };
  const refresh = () => attempt(false);
  // Before the first draw: what it reads may be older than a change that ends meanwhile.
  changes.addEventListener("change", refresh, { signal });
  await attempt(true);
  return refresh;
}

/** Does something time and again until the signal. */
export async function every(milliseconds, signal, work) {
  for (;;) {
    await new Promise((resolve) => setTimeout(resolve, milliseconds));
    if (signal.aborted) return;
    await work();
  }
}

/**
 * A button. What it does is not begun again before it ended, and what the service answers to it instead is said. It is not disabled
 * meanwhile: a dialog gives the focus back to it.
 */
export function action(attributes, text, act) {
  let isBusy = false;
  const run = async () => {
    if (isBusy) return;
    isBusy = true;
    try {
      await act();
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      toast(error.message);
    } finally {
      isBusy = false;
    }
  };
  return h("button", { type: "button", ...attributes, onclick: run }, text);
}
