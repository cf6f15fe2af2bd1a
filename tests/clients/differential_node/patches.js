// Code that replaces parts of its process at its import, as libraries and test tools do. A handler `patches.NAME` selects what is
// replaced.
const { Promise, setTimeout, process: { env } } = globalThis;
const forever = () => new Promise((resolve) => setTimeout(resolve, 60_000));
const broken = (name) => function () { throw new Error(`${name} is replaced`); };
const all = (object, names) => { for (const name of names) object[name] = broken(name); };
const patches = {};

patches.httpRequest = () => all(require("http"), ["request", "get", "Agent", "ClientRequest"]);
patches.agent = () => all(require("http").Agent.prototype, ["addRequest", "createConnection", "createSocket"]);
patches.net = () => { all(require("net"), ["connect", "createConnection", "Socket"]); };
patches.lookup = () => { all(require("dns"), ["lookup"]); };
patches.socket = () => { all(require("net").Socket.prototype, ["connect", "write", "ref", "unref", "on"]); };
patches.stringify = () => { JSON.stringify = () => "replaced"; };
patches.parse = () => { JSON.parse = broken("parse"); };
patches.json = () => { globalThis.JSON = {}; };
patches.iterator = () => { Array.prototype[Symbol.iterator] = null; };
patches.promise = () => { globalThis.Promise = broken("Promise"); };
patches.promiseThen = () => { const { then } = Promise.prototype; Promise.prototype.then = function (...taken) { return then.apply(this, taken); }; };
patches.bufferGlobal = () => { globalThis.Buffer = undefined; };
patches.buffer = () => { all(Buffer, ["concat", "byteLength", "isBuffer"]); };
patches.console = () => { globalThis.console = { log: broken("log"), error: broken("error"), info: broken("info") }; };
patches.consoleMethods = () => { all(console, ["log", "info", "warn", "debug", "error"]); };
patches.consoleSpy = () => { const { log } = console; console.log = (...said) => log("[spy]", ...said); console.log("spied"); };
patches.environment = () => { process.env = { OWN: "1" }; };
patches.variable = () => { process.env.AWS_LAMBDA_FUNCTION_NAME = "renamed"; delete process.env.AWS_LAMBDA_RUNTIME_API; };
patches.timeouts = () => { all(globalThis, ["setTimeout", "setInterval", "clearTimeout"]); };
patches.immediate = () => { globalThis.setImmediate = () => {}; };
patches.tick = () => { process.nextTick = () => {}; };
patches.date = () => { globalThis.Date = class extends Date { static now() { return 0; } }; };
patches.files = () => { all(require("fs"), ["existsSync", "readFileSync", "statSync", "writeSync"]); };
patches.util = () => { all(require("util"), ["inspect", "promisify"]); };
patches.emit = () => {
  const { prototype } = require("events");
  const { emit } = prototype;
  prototype.emit = function (...said) { return this instanceof require("net").Socket || emit.apply(this, said); };
};
patches.listeners = () => { all(require("events").prototype, ["on", "once", "removeListener"]); };
patches.stdout = () => { process.stdout.write = () => true; };
patches.stdoutThrows = () => { process.stdout.write = broken("write"); };
patches.loader = () => { const Module = require("module"); const { _load } = Module; Module._load = function (...asked) { return _load.apply(this, asked); }; };
patches.globals = () => { globalThis.process = { env: {} }; globalThis.global = undefined; };
patches.prepare = () => { Error.prepareStackTrace = (error, frames) => `${error.name} with own frames`; };
patches.exit = () => { process.exit = broken("exit"); };
patches.exitListener = () => { process.on("exit", broken("exit")); };

patches.bindings = () => {
  patches.files();
  patches.socket();
  patches.httpRequest();
  require("module").syncBuiltinESMExports();
};
patches.handles = () => { for (const handle of process._getActiveHandles()) if (handle.remotePort) handle.destroy(); };

const name = env._HANDLER.split(".")[1];
patches[name]();
exports[name] = async (event) => {
  if (event === "uncaught") {
    setTimeout(() => { throw new RangeError("uncaught"); }, 5);
    await forever();
  }
  if (event.fail) throw new RangeError("on purpose");
  return { event };
};
