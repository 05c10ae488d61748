// Numbers, times and names as people read them.

const MINUTE = 60_000;
const DAY = 24 * 60 * MINUTE;
const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });
const weekday = new Intl.DateTimeFormat(undefined, { weekday: "short" });
const day = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" });
const date = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short", year: "numeric" });
const month = new Intl.DateTimeFormat(undefined, { month: "long" });
const monthAndYear = new Intl.DateTimeFormat(undefined, { month: "long", year: "numeric" });
const whole = new Intl.DateTimeFormat(undefined, { dateStyle: "full", timeStyle: "medium" });
const number = new Intl.NumberFormat();
const short = new Intl.NumberFormat(undefined, { notation: "compact", maximumFractionDigits: 1 });

/**
 * When something was, in a word.
 * @param {string} text a time as the API writes it
 * @param {number} [now]
 */
export function when(text, now = Date.now()) {
  const time = new Date(text);
  const age = now - time.getTime();
  const midnight = new Date(now).setHours(0, 0, 0, 0);
  if (age < MINUTE && age > -MINUTE) return "now";
  if (age < 60 * MINUTE && age > 0) return `${Math.floor(age / MINUTE)} min`;
  if (time.getTime() >= midnight) return clock.format(time);
  if (time.getTime() >= midnight - 6 * DAY) return weekday.format(time);
  return time.getFullYear() === new Date(now).getFullYear() ? day.format(time) : date.format(time);
}

/**
 * The days among which something stands in a list.
 * @param {string} text a time as the API writes it
 * @param {number} midnight with which today began
 */
export function dayOf(text, midnight) {
  const time = new Date(text);
  const at = time.getTime();
  if (at >= midnight) return "Today";
  if (at >= midnight - DAY) return "Yesterday";
  if (at >= midnight - 6 * DAY) return "This week";
  return (time.getFullYear() === new Date(midnight).getFullYear() ? month : monthAndYear).format(time);
}

/**
 * When something was said: the time, with the day where that is not today.
 * @param {string} text
 */
export function clockTime(text) {
  const time = new Date(text);
  const isToday = time.toDateString() === new Date().toDateString();
  return isToday ? clock.format(time) : `${when(text)}, ${clock.format(time)}`;
}

/**
 * The time of a day, without the day.
 * @param {number} seconds since 1970
 */
export function timeOfDay(seconds) {
  return clock.format(new Date(seconds * 1000));
}

/** @param {string} text */
export function moment(text) {
  return whole.format(new Date(text));
}

/** @param {number} value */
export function count(value) {
  return number.format(value);
}

/**
 * @param {number} value
 * @param {string} one
 * @param {string} [many]
 */
export function counted(value, one, many = `${one}s`) {
  return `${number.format(value)} ${value === 1 ? one : many}`;
}

/** @param {number} value */
export function compact(value) {
  return short.format(value);
}

/** @param {number} value */
export function bytes(value) {
  const units = ["bytes", "KB", "MB", "GB", "TB"];
  let unit = 0;
  for (; value >= 1000 && unit < units.length - 1; unit++) value /= 1000;
  return `${value < 10 && unit ? value.toFixed(1) : Math.round(value)} ${units[unit]}`;
}

/** @param {number} seconds */
export function duration(seconds) {
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  if (seconds < 129_600) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86_400)} days`;
}

/**
 * What a session is called: by its title, else by how it begins, and by its chat while it has no message.
 * @param {{title?: string | null, first_words?: string | null, chat_id: string, channel: string}} session
 */
export function nameOf(session) {
  if (session.title?.trim()) return session.title;
  if (session.first_words) return session.first_words;
  return session.channel === "conv" ? "New conversation" : session.chat_id;
}

const TITLE_LENGTH = 60;

/**
 * What is said, as a title.
 * @param {string} text
 */
export function titleOf(text) {
  const line = text.replace(/\s+/g, " ").trim();
  return line.length > TITLE_LENGTH ? `${line.slice(0, TITLE_LENGTH - 1)}…` : line;
}
