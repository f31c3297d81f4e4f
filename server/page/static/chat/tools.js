// The tools that a model is shown: the calculator, which the page answers itself, and those of the user, answered by hand.
import { calculate, written } from "./calculator.js";
import { preferences } from "./preferences.js";

const CALCULATOR = {
  type: "function",
  function: {
    name: "calculator",
    description: "Computes arithmetic: + - * / % ^, parentheses, sqrt, sin, log and the like.",
    parameters: {
      type: "object",
      properties: { expression: { type: "string", description: "what to compute, such as 2 * (3 + 4)" } },
      required: ["expression"],
    },
  },
};

/** What goes into a request. */
export function offeredTools() {
  const { calculator, tools } = preferences();
  return [...(calculator ? [CALCULATOR] : []), ...(tools ? JSON.parse(tools) : [])];
}

/** The answer to a call that the page can give itself, or null where only the user can. */
export function ownAnswer(call) {
  if (call.name !== CALCULATOR.function.name || !preferences().calculator) return null;
  try {
    return written(calculate(JSON.parse(call.arguments).expression));
  } catch (error) {
    return `Error: ${error.message}`;
  }
}

/** What is wrong with a text of tools, in words; "" where nothing is. */
export function toolsProblem(text) {
  if (text.trim() === "") return "";
  try {
    const tools = JSON.parse(text);
    if (!Array.isArray(tools)) return "This is no list of tools.";
    const wrong = tools.findIndex((tool) => tool?.type !== "function" || typeof tool.function?.name !== "string");
    return wrong < 0 ? "" : `Tool ${wrong + 1} is no {"type": "function", "function": {"name": ...}}.`;
  } catch (error) {
    return `No JSON: ${error.message}`;
  }
}

/** What is wrong with a text of a JSON schema; "" where nothing is. */
export function schemaProblem(text) {
  if (text.trim() === "") return "";
  try {
    const schema = JSON.parse(text);
    return schema !== null && typeof schema === "object" && !Array.isArray(schema) ? "" : "A schema is an object.";
  } catch (error) {
    return `No JSON: ${error.message}`;
  }
}
