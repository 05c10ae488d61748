// What the token may do, as the daemon reports it: refused operations are not offered.

import { get } from "./api.js";

const SCOPES = ["read", "write", "admin"];

/** @type {{scope: string, channels: string[] | null, chat_prefix: string, currency: string, max_message_bytes: number}} */
let access = { scope: "read", channels: null, chat_prefix: "", currency: "USD", max_message_bytes: 0 };

export async function learnAccess() {
  access = await get("v1/access");
}

/** @param {"read" | "write" | "admin"} scope */
export function may(scope) {
  return SCOPES.indexOf(access.scope) >= SCOPES.indexOf(scope);
}

/**
 * What something cost, with the currency that the daemon names.
 * @param {number} cost
 */
export function money(cost) {
  return `${cost.toFixed(cost < 0.1 ? 4 : 2)} ${access.currency}`;
}

/** How large a message may be, with its files; 0: that is not known. */
export function mostBytes() {
  return access.max_message_bytes;
}

/** Whether there are only some sessions for the token, and nothing that is about all of them. */
export function isBounded() {
  return access.channels !== null || access.chat_prefix !== "";
}

/** A chat id that is free, among those that the token may use. */
export function newChat() {
  const random = [...crypto.getRandomValues(new Uint8Array(24))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  const channel = access.channels?.includes("conv") === false ? access.channels[0] : "conv";
  return { channel, chat_id: access.chat_prefix + random };
}
