// Several sessions marked in the list, and what can be done with all of them: with each by itself, and what fails is
// reported by name.

import { may } from "./access.js";
import { send, sessionPath } from "./api.js";
import { ask } from "./dialogs.js";
import { find, make } from "./elements.js";
import { exportSeveral } from "./exporting.js";
import { askLabels, setLabels } from "./labels.js";
import { notify } from "./notices.js";
import { pin } from "./pins.js";
import { counted, nameOf } from "./words.js";

const NAMED = 5;

export class Marking {
  /**
   * @param {import("./sessions.js").SessionList} list
   * @param {(id: string) => void} gone called for each that was deleted
   */
  constructor(list, gone) {
    this.list = list;
    this.gone = gone;
    this.bar = find("marked");
    this.button = find("mark");
    list.marked = () => this.draw();
    this.button.addEventListener("click", () => list.setMarking(!list.isMarking));
    for (const part of [this.bar, list.scroll]) part.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => this.left(event));
  }

  /** Mark the session whose row has the focus, else the one that is shown. */
  toggle() {
    const id = this.list.focused || this.list.chosen;
    if (id) this.list.mark(id);
    else this.list.setMarking(!this.list.isMarking);
  }

  /** @param {KeyboardEvent} event */
  left(event) {
    if (event.key !== "Escape" || !this.list.isMarking) return;
    event.preventDefault();
    this.list.setMarking(false);
    this.button.focus();
  }

  draw() {
    const { list } = this;
    this.button.setAttribute("aria-pressed", String(list.isMarking));
    this.bar.hidden = !list.isMarking;
    if (!list.isMarking) return this.bar.replaceChildren();
    const ids = [...list.marks];
    const arePinned = ids.length > 0 && ids.every((id) => list.rowOf(id)?.pinned);
    const button = (/** @type {string} */ text, /** @type {() => any} */ act, danger = false) =>
      make("button", { type: "button", disabled: !ids.length, class: danger ? "danger" : null, click: act }, text);
    this.bar.replaceChildren(
      make("p", { role: "status" }, ids.length ? `${counted(ids.length, "session")} marked` : "Mark sessions in the list"),
      may("write") ? button(arePinned ? "Unpin" : "Pin", () => this.pin(ids, !arePinned)) : "",
      may("write") ? button("Label…", () => this.label(ids)) : "",
      button("Export…", () => exportSeveral(ids, (these, act) => this.forEach("exported", these, act))),
      may("write") ? button("Delete…", () => this.remove(ids), true) : "",
      make("button", { type: "button", click: () => list.setMarking(false) }, "Done"),
    );
  }

  /**
   * @param {string[]} ids
   * @param {boolean} isPinned
   */
  async pin(ids, isPinned) {
    await this.forEach(isPinned ? "pinned" : "unpinned", ids, (id) => pin(id, isPinned));
    this.list.refreshSoon();
  }

  /** @param {string[]} ids */
  async label(ids) {
    const labelsOf = (/** @type {string} */ id) => this.list.rowOf(id)?.labels ?? [];
    const changed = await askLabels(ids.map(labelsOf));
    if (!changed) return;
    await this.forEach("labelled", ids, (id) => setLabels(id, changed(labelsOf(id))));
    this.list.refreshSoon();
  }

  /** @param {string[]} ids */
  async remove(ids) {
    const isSure = await ask({
      title: `Delete ${counted(ids.length, "session")}?`, confirm: "Delete", danger: true,
      body: [...this.named(ids), make("p", {}, "Everything that was said in them is deleted: from the store, the archive and the quarantine. This cannot be undone.")],
    });
    if (!isSure) return;
    const remains = new Set();
    await this.forEach("deleted", ids, async (id) => {
      const everywhere = id === ids.at(-1); // the store's log is emptied once, behind all of them
      const reply = await send("DELETE", sessionPath(id), undefined, { key: crypto.randomUUID(), query: { everywhere } });
      if (everywhere) for (const one of reply.remains ?? []) remains.add(one);
      this.gone(id);
    });
    if (remains.size) await ask({ title: "Deleted", cancel: null, body: [make("p", {}, "Their words may still be in:"), make("ul", {}, ...[...remains].map((one) => make("li", {}, one)))] });
  }

  /**
   * Do something with each, one after the other. Those with which it failed stay marked.
   * @param {string} done what then has been done with it
   * @param {string[]} ids
   * @param {(id: string) => Promise<any>} act
   */
  async forEach(done, ids, act) {
    /** @type {[string, string][]} */
    const failed = [];
    for (const id of ids) {
      try {
        await act(id);
        this.list.marks.delete(id);
      } catch (error) {
        failed.push([id, error instanceof Error ? error.message : String(error)]);
      }
    }
    if (failed.length) {
      const rows = failed.map(([id, reason]) => make("li", {}, make("b", {}, this.nameOf(id)), `: ${reason}`));
      await ask({ title: `${counted(failed.length, "session")} could not be ${done}`, confirm: "Close", cancel: null, wide: true, body: [make("p", {}, `${ids.length - failed.length} of ${ids.length} were ${done}. The others are still marked.`), make("ul", {}, ...rows)] });
      this.list.drawAgain();
    } else {
      notify(`${counted(ids.length, "session")} ${done}.`);
      this.list.setMarking(false);
    }
  }

  /** @param {string[]} ids */
  named(ids) {
    const names = ids.slice(0, NAMED).map((id) => make("li", {}, this.nameOf(id)));
    if (ids.length > NAMED) names.push(make("li", {}, `and ${ids.length - NAMED} more`));
    return [make("ul", {}, ...names)];
  }

  /** @param {string} id */
  nameOf(id) {
    const row = this.list.rowOf(id);
    return row ? nameOf(row) : id;
  }
}
