// A new conversation: it is made when something is said, with the model that was chosen for it before.

import { newChat } from "./access.js";
import { send, sessionPath } from "./api.js";
import { Composer } from "./composer.js";
import { find, icon, make } from "./elements.js";
import { ModelMenu } from "./models.js";
import { attempt, notify } from "./notices.js";
import { titleOf } from "./words.js";

/**
 * Show the place where it begins.
 * @param {(id: string, text: string, files: import("./attachments.js").Attached[]) => Promise<void>} made is called with
 *   the session that was made, and what was said
 * @returns {Composer}
 */
export function showBeginning(made) {
  document.title = "New conversation";
  const session = { session_id: "", ...newChat() };
  /** @type {import("./models.js").Change} */
  let chosen = {};
  const models = new ModelMenu(
    () => ({ chosen_model: chosen.model ?? null, chosen_level: chosen.thinking_level ?? null }),
    async (change) => {
      chosen = { ...chosen, ...change };
      composer.session.chosen_model = chosen.model; // which takes other files
    },
  );
  const composer = new Composer(session, { said: () => make("i"), saved: () => {}, replaced: () => {}, told: () => {}, failed: (message) => notify(message, { failed: true }) });
  composer.say = async (text, _, files = []) => {
    const { channel, chat_id } = session;
    const opened = await attempt(async () => {
      const reply = await send("POST", "v1/sessions", { channel, chat_id, title: titleOf(text || files[0].file.name) });
      return Object.keys(chosen).length ? send("PATCH", sessionPath(reply.session_id), chosen) : reply;
    });
    if (opened) await made(opened.session_id, text, files);
    else composer.giveBack(text, files);
  };
  models.learn();
  find("main").replaceChildren(
    make(
      "div",
      { class: "conversation beginning" },
      make("header", { class: "top" }, make("a", { class: "icon back", href: "#/", "aria-label": "All sessions" }, icon("back")), make("div", { class: "who" }, make("h1", {}, "New conversation")), models.button),
      make("div", { class: "scroll" }, make("p", { class: "ask" }, "What is it about?")),
      make("div", { class: "bottom" }, composer.form),
    ),
  );
  composer.focus();
  return composer;
}
