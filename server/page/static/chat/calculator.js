// Arithmetic, read and computed here: what a model wrote is never run as a script.

const LONGEST = 1000; // characters of an expression
const FUNCTIONS = {
  sqrt: Math.sqrt, abs: Math.abs, floor: Math.floor, ceil: Math.ceil, round: Math.round, exp: Math.exp,
  ln: Math.log, log: Math.log10, log2: Math.log2, sin: Math.sin, cos: Math.cos, tan: Math.tan,
};
const CONSTANTS = { pi: Math.PI, e: Math.E };
const TOKEN = /\s*(?:((?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)|([A-Za-z][A-Za-z0-9]*)|(\*\*|[-+*/%^()×÷−]))/y;
const SAME = { "×": "*", "÷": "/", "−": "-", "**": "^" };

/** The value of an expression such as "2 * (3 + 4) ^ 2". Raises Error that says what is wrong with it. */
export function calculate(expression) {
  if (typeof expression !== "string" || expression.trim() === "") throw new Error("there is no expression");
  if (expression.length > LONGEST) throw new Error(`the expression is longer than ${LONGEST} characters`);
  const reader = new Reader(tokens(expression));
  const value = reader.sum();
  if (reader.token !== undefined) throw new Error(`${reader.token} is not expected there`);
  if (!Number.isFinite(value)) throw new Error("the result is no finite number");
  return value;
}

/** A value as text, without the noise of binary fractions: 0.1 + 0.2 is 0.3. */
export function written(value) {
  return Number.isInteger(value) ? String(value) : String(Number(value.toPrecision(15)));
}

function tokens(expression) {
  const found = [];
  TOKEN.lastIndex = 0;
  const text = expression.trimEnd();
  while (TOKEN.lastIndex < text.length) {
    const at = TOKEN.lastIndex;
    const match = TOKEN.exec(text);
    if (match === null) throw new Error(`${JSON.stringify(text.slice(at).trim()[0])} is no arithmetic`);
    found.push(match[1] !== undefined ? Number(match[1]) : match[2] ?? SAME[match[3]] ?? match[3]);
  }
  return found;
}

class Reader {
  constructor(all) {
    this.all = all;
    this.place = 0;
  }

  get token() {
    return this.all[this.place];
  }

  took(...signs) {
    if (!signs.includes(this.token)) return null;
    this.place += 1;
    return this.all[this.place - 1];
  }

  sum() {
    let value = this.product();
    for (let sign = this.took("+", "-"); sign; sign = this.took("+", "-")) value = sign === "+" ? value + this.product() : value - this.product();
    return value;
  }

  product() {
    let value = this.signed();
    for (let sign = this.took("*", "/", "%"); sign; sign = this.took("*", "/", "%")) {
      const right = this.signed();
      if (sign !== "*" && right === 0) throw new Error("division by zero");
      value = sign === "*" ? value * right : sign === "/" ? value / right : value % right;
    }
    return value;
  }

  // -2 ^ 2 is -4, 2 ^ -1 is 0.5, and 2 ^ 3 ^ 2 is 2 ^ 9.
  signed() {
    if (this.took("-")) return -this.signed();
    if (this.took("+")) return this.signed();
    const base = this.atom();
    return this.took("^") ? base ** this.signed() : base;
  }

  atom() {
    const token = this.token;
    this.place += 1;
    if (typeof token === "number") return token;
    if (token === "(") return this.closed(this.sum());
    if (Object.hasOwn(CONSTANTS, token)) return CONSTANTS[token];
    if (Object.hasOwn(FUNCTIONS, token)) {
      if (!this.took("(")) throw new Error(`${token} needs parentheses`);
      return this.closed(FUNCTIONS[token](this.sum()));
    }
    throw new Error(token === undefined ? "the expression ends too early" : `${token} is not expected there`);
  }

  closed(value) {
    if (!this.took(")")) throw new Error("a ) is missing");
    return value;
  }
}
