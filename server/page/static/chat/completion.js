// A chat completion: what is asked for, and how its chunks become a message.
import { ApiError } from "../shared/api.js";
import { newId } from "./ids.js";
import { preferences, stopStrings } from "./preferences.js";
import { offeredTools } from "./tools.js";

const ALTERNATIVES = 5; // shown of each token

/** The body of a request for what comes after these messages; `goesOn` asks for the rest of the last one. */
export function bodyFor(messages, goesOn = false) {
  const { numbers, stop, system, schema, logprobs, model } = preferences();
  const body = { messages: asSent(messages, system), ...numbers, stream: true, stream_options: { include_usage: true } };
  if (model) body.model = model;
  const stops = stopStrings(stop);
  if (stops.length) body.stop = stops;
  if (schema.trim()) body.response_format = { type: "json_schema", json_schema: { name: "answer", schema: JSON.parse(schema) } };
  const tools = offeredTools();
  if (tools.length) body.tools = tools;
  if (logprobs) Object.assign(body, { logprobs: true, top_logprobs: ALTERNATIVES });
  if (goesOn) Object.assign(body, { add_generation_prompt: false, continue_final_message: true });
  return body;
}

// Calls without an answer are left out: servers refuse them, and models would wait for it.
function asSent(messages, system) {
  const answered = new Set(messages.map((message) => message.toolCallId));
  const sent = system.trim() ? [{ role: "system", content: system }] : [];
  for (const message of messages) {
    if (message.role === "tool") sent.push({ role: "tool", tool_call_id: message.toolCallId, content: message.content });
    else if (message.role === "user") sent.push({ role: "user", content: message.content });
    else {
      const calls = (message.toolCalls ?? []).filter((call) => answered.has(call.id));
      if (!message.content && !calls.length) continue;
      const one = { role: "assistant", content: message.content };
      if (message.reasoning) one.reasoning_content = message.reasoning;
      if (calls.length) one.tool_calls = calls.map(({ id, name, arguments: text }) => ({ id, type: "function", function: { name, arguments: text } }));
      sent.push(one);
    }
  }
  return sent;
}

/** Adds a chunk to a message. True if it brought text, thinking or a call. Raises ApiError where it tells of an error. */
export function addChunk(message, chunk) {
  if (chunk.error) throw new ApiError(chunk.error.message ?? "The server failed.", 200, chunk.error.code ?? "");
  if (chunk.model) message.model = chunk.model;
  if (chunk.usage) message.usage = { prompt: chunk.usage.prompt_tokens, completion: chunk.usage.completion_tokens };
  const choice = chunk.choices?.[0];
  if (!choice) return false;
  const { content, reasoning_content: thought, reasoning = thought, tool_calls: calls } = choice.delta ?? {};
  if (content) message.content += content;
  if (reasoning) message.reasoning = (message.reasoning ?? "") + reasoning;
  for (const call of calls ?? []) addCall(message, call);
  for (const one of choice.logprobs?.content ?? []) addLogprob(message, one);
  if (choice.finish_reason) message.finish = choice.finish_reason;
  return Boolean(content || reasoning || calls?.length);
}

function addCall(message, { index = 0, id, function: called }) {
  message.toolCalls ??= [];
  message.toolCalls[index] ??= { id: id || `call_${newId()}`, name: "", arguments: "" };
  message.toolCalls[index].name += called?.name ?? "";
  message.toolCalls[index].arguments += called?.arguments ?? "";
}

function addLogprob(message, { token, logprob, top_logprobs: top }) {
  message.logprobs ??= [];
  message.logprobs.push([token, logprob, (top ?? []).map((one) => [one.token, one.logprob])]);
}
