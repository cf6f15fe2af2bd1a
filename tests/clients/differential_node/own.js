// Handlers that need an instance of their own, because they end it or are no callback's.
const later = (take) => setTimeout(take, 5);
const forever = () => new Promise((resolve) => setTimeout(resolve, 60_000));

exports.raw = async (event) => [typeof event, event];
exports.arguments = async function () { return arguments.length; };
exports.syncReturn = (event) => ({ returned: event });
exports.syncZero = () => 0;
exports.syncWithCallback = (event, context, callback) => "returned";
exports.never = () => new Promise(() => {});
exports.neverAwait = async () => { await new Promise(() => {}); };
exports.unhandled = async () => { Promise.reject(new RangeError("unhandled")); await forever(); };
exports.unhandledString = async () => { Promise.reject("a string"); await forever(); };
exports.unhandledNothing = async () => { Promise.reject(); await forever(); };
exports.unhandledTwice = async () => { Promise.reject(new Error("one")); Promise.reject(new Error("two")); await forever(); };
exports.unhandledObject = async () => { Promise.reject({ code: 1 }); await forever(); };
exports.unhandledBeside = (event, context, callback) => { Promise.reject(new Error("beside a callback")); callback(null, "called"); };
exports.uncaught = async () => { later(() => { throw new RangeError("uncaught"); }); await forever(); };
exports.uncaughtNull = async () => { later(() => { throw null; }); await forever(); };
exports.uncaughtString = async () => { later(() => { throw "a string"; }); await forever(); };
exports.uncaughtTick = () => { process.nextTick(() => { throw new Error("in a tick"); }); };
exports.uncaughtEvent = async () => { later(() => new (require("events"))().emit("error", new Error("an event"))); await forever(); };
exports.uncaughtInCallback = (event, context, callback) => { callback(null, { get a() { throw new Error("too late"); } }); };
exports.exitZero = async () => process.exit(0);
exports.exitThree = async () => process.exit(3);
exports.exitLater = async () => { later(() => process.exit(4)); await forever(); };
exports.exitCode = async () => { process.exitCode = 5; return "fine"; };
exports.exitAfterAnswer = (event, context, callback) => {
  context.callbackWaitsForEmptyEventLoop = false;
  callback(null, "answered");
  process.exit(0);
};
exports.exitAfterLongAnswer = (event, context, callback) => {
  context.callbackWaitsForEmptyEventLoop = false;
  callback(null, "x".repeat(5 << 20));
  process.exit(0);
};
exports.exitInExit = async () => { process.on("exit", () => console.log("in the listener of exit")); process.exit(6); };
exports.killed = async () => { process.kill(process.pid, "SIGKILL"); await forever(); };
exports.terminated = async () => { process.kill(process.pid, "SIGTERM"); await forever(); };
exports.ownListener = async () => { process.on("uncaughtException", (error) => console.log("heard", error.message)); later(() => { throw new Error("uncaught"); }); await forever(); };
exports.noListeners = async () => { process.removeAllListeners("uncaughtException"); later(() => { throw new Error("uncaught"); }); await forever(); };
exports.jsonLog = async () => {
  console.log("text");
  console.log({ a: 1 });
  console.log("two %s", "texts", { b: 2 });
  console.log();
  console.error(new RangeError("alone"));
  console.error("with", Object.assign(new RangeError("an error"), { code: "E" }));
  console.warn({ error: new Error("inside") });
  console.log({ big: 1n });
  throw Object.assign(new RangeError("thrown"), { code: "E" });
};
exports.leveled = exports.jsonLog;
exports.longMessage = async () => { throw Object.assign(new Error("m".repeat(20 * 1024)), { name: "LongError" }); };
