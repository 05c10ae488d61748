// The commands of the palette: those of the view that is shown, and those that are always there.

import { may } from "./access.js";
import { sessionChoices } from "./actions.js";
import { find } from "./elements.js";
import { answerAgain } from "./versions.js";

/** @typedef {import("./palette.js").Offer} Offer */

/**
 * @param {import("./conversation.js").Conversation} conversation
 * @returns {Offer[]}
 */
function ofConversation(conversation) {
  const { composer, models, tree, turn } = conversation;
  const ofWriters = [
    turn.isRunning
      ? { text: "Stop the answer", hint: "Esc", act: () => composer.stop() }
      : { text: "Answer again", hint: "r", act: () => answerAgain(conversation, conversation.articles.marked) },
    ...models.choices().filter((one) => !one.checked).map(({ group, text, act }) => ({ text: `${group}: ${text}`, act })),
  ];
  return [
    ...(may("write") ? ofWriters : []),
    { text: tree.isOpen ? "Close the tree" : "Tree", hint: "t", act: () => tree.toggle() },
    ...sessionChoices(conversation).filter((one) => one !== null),
  ];
}

/**
 * @param {import("./conversation.js").Conversation | null} conversation
 * @param {{text: string, key: string, act: () => void}[]} named commands that are keys, too
 * @returns {Offer[]}
 */
export function commandsOf(conversation, named) {
  const buttons = [...(may("write") ? ["import"] : []), "theme"].map((id) => ({ text: find(id).title, act: () => find(id).click() }));
  const service = { text: "Service view", act: () => void (location.hash = "#/service") };
  return [...(conversation ? ofConversation(conversation) : []), ...named.map(({ text, key, act }) => ({ text, hint: key, act })), service, ...buttons];
}
