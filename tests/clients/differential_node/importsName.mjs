import { nothing } from "./common.cjs"; import { missing } from "./top.mjs"; export const handler = async () => 1;
