/** The conversation: what was said, kept in the browser, and the answer that is on its way. */

import { ApiError, call, events } from "./api.js";
import { byId, given, keep, recall, sendByEnter, swap, tell } from "./shared.js";

const WHO = { user: "You", assistant: "Model" };
const NOTES = {
  stopped: "stopped",
  length: "cut short: it may have no more tokens",
  error: "ended by an error",
};

/** Messages: {role, content, note}; the last one may be an answer on its way. */
let said = [];
let running = null;

/** Stop the answer that is on its way. */
export function stop() {
  running?.abort();
}

/** Make it work. */
export function start() {
  const form = byId("chat-form");
  const old = recall("conversation", []);
  said = Array.isArray(old) ? old.filter(isMessage) : [];
  if (said.at(-1)?.role === "user") byId("message").value = said.pop().content; // never answered
  for (const message of said) show(message);
  follow(true);
  sendByEnter(byId("message"));
  byId("stop").addEventListener("click", stop);
  byId("clear").addEventListener("click", clear);
  addEventListener("pagehide", () => running !== null && save()); // as far as the answer came
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (running === null && byId("sampling-form").reportValidity()) void ask();
  });
}

function isMessage(one) {
  return Object.hasOwn(WHO, one?.role) && typeof one.content === "string";
}

function clear() {
  stop();
  said = [];
  for (const article of [...byId("log").querySelectorAll("article")]) article.remove();
  byId("spoken").replaceChildren();
  tell("");
  save();
  follow(true);
  byId("message").focus();
}

function save() {
  const isEmpty = running !== null && said.at(-1)?.content === "";
  const kept = isEmpty ? said.slice(0, -1) : said;
  if (!keep("conversation", kept) && kept.length > 0) {
    tell("The browser does not keep this conversation: it goes when the page does.");
  }
}

/** Ask what is in the text field. */
async function ask() {
  const area = byId("message");
  const question = { role: "user", content: area.value.trim() };
  if (question.content === "") return;
  const answer = { role: "assistant", content: "", note: "" };
  const body = {
    messages: [...said, question].map(({ role, content }) => ({ role, content })),
    stream: true,
    stream_options: { include_usage: true },
    ...given(byId("sampling-form")),
  };
  tell("");
  area.form.reset(); // an empty field is no mistake now
  said.push(question, answer);
  const shown = [show(question), show(answer)];
  follow(true);
  const own = (running = new AbortController());
  swap(byId("send"), byId("stop"), true);
  shown[1].setAttribute("aria-busy", "true");
  let failed = false;
  try {
    answer.note = await listen(body, own.signal, piecemeal(answer, shown[1]));
  } catch (error) {
    failed = true;
    answer.note = NOTES[own.signal.aborted ? "stopped" : "error"];
    if (!own.signal.aborted) tell(error instanceof ApiError ? error.message : String(error));
  }
  shown[1].removeAttribute("aria-busy");
  shown[1].querySelector(".note").textContent = answer.note;
  if (failed && answer.content === "" && said.includes(answer)) {
    // Nothing was answered: sending the question again asks it again.
    said = said.filter((message) => message !== question && message !== answer);
    for (const article of shown) article.remove();
    if (area.value === "") area.value = question.content;
  }
  running = null;
  swap(byId("send"), byId("stop"), false);
  save();
}

/** Hear an answer; gives a note on how it ended. */
async function listen(body, signal, piece) {
  let note = "";
  let first = 0;
  const response = await call("v1/chat/completions", { method: "POST", body, signal });
  for await (const { data } of events(response)) {
    if (data === "[DONE]") return note;
    const event = JSON.parse(data);
    if (event.error) throw new ApiError(event.error.message);
    const [choice] = event.choices;
    if (choice?.delta.content) {
      first ||= performance.now();
      piece(choice.delta.content);
    }
    if (choice?.finish_reason === "length") note = NOTES.length;
    if (event.usage) note = [rate(event.usage, first), note].filter(Boolean).join("; ");
  }
  throw new ApiError("The connection to the server ended before the answer did.");
}

function rate({ completion_tokens: count }, first) {
  const seconds = first ? (performance.now() - first) / 1000 : 0;
  const each = count > 1 && seconds > 0 ? `, ${((count - 1) / seconds).toFixed(1)} a second` : "";
  return `${count} ${count === 1 ? "token" : "tokens"}${each}`;
}

/** Adds pieces to an answer: on the page as they come, for listeners a sentence at a time. */
function piecemeal(answer, article) {
  const node = document.createTextNode("");
  article.querySelector(".text").append(node);
  const spoken = byId("spoken");
  let unsaid = "";
  spoken.replaceChildren();
  const speak = (words) => {
    if (words.trim() === "") return;
    const line = document.createElement("p");
    line.textContent = words;
    spoken.append(line);
  };
  new MutationObserver((_, observer) => {
    if (article.hasAttribute("aria-busy")) return;
    observer.disconnect();
    speak(unsaid);
  }).observe(article, { attributes: true });
  return (piece) => {
    const atEnd = isAtEnd();
    answer.content += piece;
    node.appendData(piece);
    if (atEnd) follow(false);
    unsaid += piece;
    const [sentences] = /^[^]*(?:[.!?:;。！？](?=\s)|\n)/u.exec(unsaid) ?? [""];
    speak(sentences);
    unsaid = unsaid.slice(sentences.length);
  };
}

/** Put a message on the page. What it says is text, whatever it looks like. */
function show(message) {
  const article = document.createElement("article");
  article.className = message.role;
  for (const [kind, name, content] of [
    ["h3", "who", WHO[message.role]],
    ["p", "text", message.content],
    ["p", "note", message.note ?? ""],
  ]) {
    const part = document.createElement(kind);
    part.className = name;
    part.textContent = content;
    article.append(part);
  }
  byId("log").append(article);
  return article;
}

function isAtEnd() {
  const log = byId("log");
  return log.scrollHeight - log.scrollTop - log.clientHeight < 60;
}

/** Scroll to the end, where that is wanted. */
function follow(always) {
  const log = byId("log");
  if (always || !isAtEnd()) log.scrollTop = log.scrollHeight;
}
