import { createRequire } from "node:module";
const waited = await new Promise((resolve) => setTimeout(() => resolve("waited"), 5));
export const handler = async (event) => ({ waited, event, require: typeof createRequire(import.meta.url), url: import.meta.url });
export const api = { v1: { get: async () => import.meta.url } };
export const text = "no function";
export const fails = async () => { throw new RangeError("of a module"); };
export const strict = async function () { return this === undefined; };
export const awaits = async () => (await import("./top.mjs")).text;
export default { whole: async () => "of the default export" };
