import { readFileSync } from "node:fs";
const waited = await Promise.resolve("waited");
export const handler = async () => [waited, typeof require, typeof readFileSync, import.meta.url];
export const api = { handler: async () => "of a module" };
