// Recomputes the digests of a golden file in another language: canonical JSON by RFC 8785, then SHA-256.
// Usage: node digest.mjs identity.golden; prints what differs and exits with 1, or prints how many agree.
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";

function canonical(value) {
  if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  const fields = Object.keys(value).sort().map((key) => `${JSON.stringify(key)}:${canonical(value[key])}`);
  return `{${fields.join(",")}}`;
}

const lines = readFileSync(process.argv[2], "utf8").split("\n");
const identities = lines.filter((line) => line.startsWith("  {")).map((line) => line.trim());
const digests = lines.filter((line) => line.startsWith("  tt1:")).map((line) => line.trim());
const wrong = identities.filter((text, at) => {
  const bytes = canonical(JSON.parse(text));
  return bytes !== text || `tt1:${createHash("sha256").update(bytes, "utf8").digest("hex")}` !== digests[at];
});
console.log(wrong.length ? `differ:\n${wrong.join("\n")}` : `${identities.length} digests agree`);
process.exit(wrong.length || identities.length !== digests.length ? 1 : 0);
