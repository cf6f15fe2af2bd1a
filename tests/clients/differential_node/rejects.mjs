await Promise.reject(new RangeError("at the top level")); export const handler = async () => 1;
