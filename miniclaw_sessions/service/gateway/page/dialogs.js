// Questions that wait for an answer, as the browser's own modal dialogs: they keep the focus, and Escape leaves them.

import { make } from "./elements.js";

/**
 * Show a dialog until it is answered.
 * @param {{title: string, body?: (Node | string)[], confirm?: string, cancel?: string | null, danger?: boolean,
 *   value?: () => any, act?: (value: any) => Promise<any>, wide?: boolean}} wanted `act` is done with the answer, and may fail: then
 *   the dialog stays, and says why
 * @returns {Promise<any>} what `value` gives (by default true); null when it was left
 */
export function ask(wanted) {
  const { title, body = [], confirm = "OK", cancel = "Cancel", danger = false, value = () => true, act = async () => {}, wide = false } = wanted;
  return new Promise((resolve) => {
    /** @type {any} */
    let answer = null;
    const problem = make("p", { class: "error", role: "alert", hidden: true });
    const form = make(
      "form",
      {
        submit: (/** @type {Event} */ event) => {
          event.preventDefault();
          answer = value();
          form.inert = true; // once is enough
          act(answer).then(() => dialog.close(), (/** @type {Error} */ error) => {
            form.inert = problem.hidden = false;
            problem.textContent = error.message;
          });
        },
      },
      make("h2", {}, title),
      ...body,
      problem,
      make(
        "div",
        { class: "buttons" },
        cancel !== null && make("button", { type: "button", click: () => dialog.close() }, cancel),
        make("button", { type: "submit", class: danger ? "danger" : "primary" }, confirm),
      ),
    );
    const dialog = make("dialog", { "aria-label": title, class: wide ? "wide" : null }, form);
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(answer);
    });
    dialog.addEventListener("click", (event) => {
      if (event.target === dialog) dialog.close();
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

/**
 * Ask for a text.
 * @param {{title: string, label: string, value?: string, confirm?: string, hint?: string, long?: boolean, required?: boolean,
 *   act?: (value: string) => Promise<any>}} wanted
 * @returns {Promise<string | null>}
 */
export function askText({ title, label, value = "", confirm = "Save", hint, long = false, required = false, act }) {
  const field = make(long ? "textarea" : "input", { id: "asked", dir: "auto", autocomplete: "off", required, rows: long ? 8 : null, autofocus: true });
  field.value = value;
  /** @type {(Node | string)[]} */
  const body = [make("label", { for: "asked" }, label), field];
  if (hint) body.push(make("p", { class: "hint" }, hint));
  const answer = ask({ title, body, confirm, value: () => field.value, act, wide: long });
  field.select();
  if (long) {
    field.addEventListener("keydown", (event) => {
      const { key, ctrlKey, metaKey } = /** @type {KeyboardEvent} */ (event);
      if (key === "Enter" && (ctrlKey || metaKey)) field.form?.requestSubmit();
    });
  }
  return answer;
}
