setImmediate(() => { throw new RangeError("after the import"); }); await new Promise((resolve) => setTimeout(resolve, 1000)); export const handler = async () => 1;
