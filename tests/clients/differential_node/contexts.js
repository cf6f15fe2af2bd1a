// Uses of the context and of the environment. `handler` runs the export that the event names.
const times = (value) => (typeof value === "number" && Number.isInteger(value) ? "a whole number" : value);

exports.everything = async (event, context) => context;
exports.keys = async (event, context) => Object.entries(context).map(([key, value]) => [key, typeof value]);
exports.descriptors = async (event, context) => Object.entries(Object.getOwnPropertyDescriptors(context)).map(
  ([key, { get, set, writable, enumerable, configurable }]) => [key, typeof get, typeof set, writable, enumerable, configurable],
);
exports.prototype = async (event, context) => Object.getPrototypeOf(context) === Object.prototype;
exports.remaining = async (event, context) => {
  const remaining = context.getRemainingTimeInMillis();
  return [times(remaining), remaining > 0, remaining <= 30_000, times((0, context.getRemainingTimeInMillis)())];
};
exports.sets = async (event, context) => {
  context.tenant = "x";
  context.functionName = "mine";
  delete context.memoryLimitInMB;
  return [context.tenant, context.functionName, "memoryLimitInMB" in context];
};
exports.isFresh = async (event, context) => [context.tenant, context.memoryLimitInMB];
exports.frozen = async (event, context) => {
  Object.freeze(context);
  context.callbackWaitsForEmptyEventLoop = false;
  return context.callbackWaitsForEmptyEventLoop;
};
exports.copied = async (event, context) => { const copy = { ...context }; copy.succeed("by the copy"); };
exports.clientContext = async (event, context) => context.clientContext;
exports.identity = async (event, context) => [typeof context.identity, typeof context.tenantId];
exports.waitsIsTrue = async (event, context) => context.callbackWaitsForEmptyEventLoop;
exports.logGlobals = async (event, context) => globalThis[Symbol.for("aws.lambda.runtime.requestId")] === context.awsRequestId;
exports.environment = async () => Object.keys(process.env).sort().filter((name) => name !== "LANDFAST_RUNTIME_CLIENT");
exports.task = async () => [process.cwd(), process.argv.length, __dirname, __filename, process.env._HANDLER, process.title];
exports.traceId = async () => process.env._X_AMZN_TRACE_ID;
exports.main = async () => [require.main === module, typeof require.main, module.children.length, module.loaded];
exports.this = async function () { return this === exports; };
exports.globals = async () => [typeof awslambda, typeof awslambda.streamifyResponse, typeof awslambda.HttpResponseStream.from, awslambda.streamifyResponse.length];
exports.resolution = async () => require.resolve.paths("x");
exports.listeners = async () => ["uncaughtException", "unhandledRejection", "beforeExit", "exit", "SIGTERM"].map((name) => process.listenerCount(name));
exports.strict = async () => (function () { return this === undefined; })();

exports.handler = (event, context, callback) => exports[event.case](event.event, context, callback);
