// Ids that nobody guesses. crypto.randomUUID is there in secure contexts alone, and a plain-http address of a LAN is none.

/** 128 random bits as hex digits. */
export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
