// Conversations as files: what is written, and what is taken from a file that anybody may have made.
import { newId } from "./ids.js";
import { Conversation, UNTITLED } from "./tree.js";

const FORMAT = "jaxserve-conversations";
const VERSION = 1;
const ROLES = ["user", "assistant", "tool"];
const MOST_MESSAGES = 100_000;
const TITLE_CHARS = 200;

/** The text of a file with these conversations. */
export function toFile(conversations) {
  const content = conversations.map((one) => ({ ...one.head(), messages: [...one.messages.values()] }));
  return JSON.stringify({ format: FORMAT, version: VERSION, conversations: content }, null, 1);
}

/** The conversations of such a text, with ids of their own. Raises Error in words for the user. */
export function fromFile(text) {
  let content;
  try {
    content = JSON.parse(text);
  } catch (error) {
    throw new Error(`This file is no JSON: ${error.message}`);
  }
  if (content?.format !== FORMAT || !Array.isArray(content.conversations)) throw new Error(`This file has no "format": "${FORMAT}".`);
  if (content.version !== VERSION) throw new Error(`This file has version ${Number(content.version)}; ${VERSION} can be read.`);
  return content.conversations.map(readConversation);
}

function readConversation(given, place) {
  const where = `conversations[${place}]`;
  if (!Array.isArray(given?.messages)) throw new Error(`${where} has no messages.`);
  if (given.messages.length > MOST_MESSAGES) throw new Error(`${where} has more than ${MOST_MESSAGES} messages.`);
  const created = time(given.created);
  const title = string(given.title).slice(0, TITLE_CHARS) || UNTITLED;
  const conversation = new Conversation({ title, named: given.named === true, created, updated: time(given.updated) });
  const ids = new Map([["", ""]]); // of the file, to new ones: they may be here already
  let latest = -Infinity;
  given.messages.forEach((message, index) => {
    const read = readMessage(message, `${where}.messages[${index}]`, ids, conversation.id);
    latest = read.created = Math.max(read.created, latest + 1); // their order, as it is stored
    conversation.messages.set(read.id, read);
  });
  for (const [parent, child] of Object.entries(given.chosen ?? {})) {
    if (ids.has(parent) && ids.has(child)) conversation.chosen.set(ids.get(parent), ids.get(child));
  }
  return conversation;
}

// A parent comes before its children, so that there are no circles.
function readMessage(given, where, ids, conversation) {
  if (!ROLES.includes(given?.role)) throw new Error(`${where}.role is none of ${ROLES.join(", ")}.`);
  if (typeof given.content !== "string") throw new Error(`${where}.content is no text.`);
  if (typeof given.id !== "string" || given.id === "" || ids.has(given.id)) throw new Error(`${where}.id is missing or not the only one.`);
  if (!ids.has(given.parent)) throw new Error(`${where}.parent is no message before it.`);
  const id = newId();
  ids.set(given.id, id);
  const message = { id, conversation, parent: ids.get(given.parent), role: given.role, content: given.content, created: time(given.created) };
  message.state = given.state === "streaming" ? "broken" : ["stopped", "broken", "error"].includes(given.state) ? given.state : "done";
  for (const name of ["reasoning", "model", "finish", "error", "toolCallId"]) if (given[name]) message[name] = string(given[name]);
  if (given.toolCalls) message.toolCalls = list(given.toolCalls).map(readCall);
  if (given.usage) message.usage = { prompt: count(given.usage.prompt), completion: count(given.usage.completion) };
  if (given.times) message.times = { first: count(given.times.first), generating: count(given.times.generating) };
  if (given.logprobs) message.logprobs = list(given.logprobs).map(readLogprob);
  return message;
}

function readCall(given) {
  return { id: string(given?.id), name: string(given?.name), arguments: string(given?.arguments) };
}

function readLogprob(given) {
  const [token, logprob, top] = list(given);
  return [string(token), number(logprob), list(top).map((one) => [string(one?.[0]), number(one?.[1])])];
}

const string = (value) => (typeof value === "string" ? value : "");
const list = (value) => (Array.isArray(value) ? value : []);
const number = (value) => (Number.isFinite(value) ? value : 0);
const count = (value) => (Number.isFinite(value) && value >= 0 ? value : null);
const time = (value) => (Number.isFinite(value) && Math.abs(value) < 8.64e15 ? value : Date.now());
